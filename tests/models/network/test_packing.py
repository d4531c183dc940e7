"""Layers for inference compute what plain ones do, as closely as their weights are kept, where there are kernels."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from models.errors import LoadError
from models.network import linear
from models.network.linear import Fp8Linear, HalfLinear, InferenceLinear, Int4Linear, Int8Linear, PackedLinear
from models.network.packing import _packed, choose, halves, pack, packs
from models.network.quantization import Quantization

CPU = torch.device("cpu")
KINDS = {PackedLinear: 1e-6, HalfLinear: 1e-3, Int8Linear: 2e-2, Int4Linear: 0.15, Fp8Linear: 5e-2}
"""And how far from the plain layer's outputs theirs may be, as a share of their size."""

pytestmark = pytest.mark.skipif(
    not packs(torch.float32, CPU) or not halves(torch.float32, CPU), reason="this build of torch lacks the kernels"
)


def plain(inputs: int = 64, outputs: int = 48, *, bias: bool = False) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 64), (2 * linear.MANY + 1, 64), (3, 5, 64)])
def test_a_layer_is_as_close_as_its_weights(kind: type[InferenceLinear], bias: bool, shape: tuple[int, ...]) -> None:
    layer, inputs = plain(bias=bias), torch.randn(shape)
    expected, output = layer(inputs), kind(layer)(inputs)
    assert output.shape == expected.shape and output.dtype is torch.float32
    assert ((output - expected).norm() / expected.norm()).item() <= KINDS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_give_no_rows(kind: type[InferenceLinear]) -> None:
    assert kind(plain())(torch.ones(0, 1, 64)).shape == (0, 1, 48)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_gets_the_same_among_few_and_among_many(kind: type[InferenceLinear]) -> None:
    layer, inputs = kind(plain()), torch.randn(3 * linear.MANY, 64)
    alone = torch.cat([layer(row[None]) for row in inputs])
    tolerance = 1e-2 if kind in (Int8Linear, Int4Linear, Fp8Linear) else 1e-5  # results of few rows come in bfloat16
    torch.testing.assert_close(layer(inputs), alone, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", [Int8Linear, Int4Linear])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_both_sides_of_a_switch_are_equal(kind: type[Int8Linear | Int4Linear], dtype: torch.dtype, bias: bool) -> None:
    """In float32 they differ in the order of sums, which rounding hides but where a sum is near a tie.

    In bfloat16 by one more rounding besides: of the sums (8 bits) or of each weight (4 bits).
    """
    if not packs(dtype, CPU):
        pytest.skip("this CPU does not multiply in bfloat16")
    layer = plain(256, 64, bias=bias).to(dtype)
    narrow, switching = kind(layer), kind(layer, keep_wide=True)
    inputs = torch.randn(switching.most_few + 1, 256).to(dtype)
    few = torch.cat([narrow(row[None]) for row in inputs]).float()
    assert torch.equal(torch.cat([switching(row[None]) for row in inputs]).float(), few)
    many = switching(inputs).float()
    sizes = inputs.float().abs() @ narrow._pack(layer.weight.float())[2].abs().T
    sizes = sizes * narrow.scales.float() if kind is Int8Linear else sizes
    rounded = 2**-9 * sizes if kind is Int4Linear and dtype is torch.bfloat16 else 0 * sizes
    assert bool(((few - many).abs() <= 2**-7 * few.abs() + rounded + 2**-20 * sizes + 2**-8).all())
    if dtype is torch.float32:
        assert (few == many).float().mean().item() > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_copies_share_the_weight_and_nothing_else(kind: type[InferenceLinear]) -> None:
    layer = kind(plain(bias=True))
    twin = copy.deepcopy(layer)
    layer.register_forward_pre_hook(lambda *_: None)
    assert not twin._forward_pre_hooks
    assert all(getattr(twin, name) is getattr(layer, name) for name in vars(layer) if not name.startswith("_"))
    inputs = torch.randn(2, 64)
    assert torch.equal(twin(inputs), layer(inputs))


def test_four_bits_hold_sixteen_evenly_spaced_weights_as_they_are() -> None:
    layer = plain(linear.GROUP, 16)
    layer.weight.copy_((torch.arange(linear.GROUP) % 16 - 8).float().expand(16, linear.GROUP))
    inputs = torch.randint(-4, 5, (3, linear.GROUP)).float()
    torch.testing.assert_close(Int4Linear(layer)(inputs), layer(inputs))


def test_a_weight_of_zeros_stays_one() -> None:
    layer = plain()
    layer.weight.zero_()
    for kind in KINDS:
        assert not kind(layer)(torch.ones(2, 64)).any()


class Special(nn.Linear):
    pass


def network() -> nn.Sequential:
    """A layer, one deep inside, one of a kind of its own, one of odd sizes, and one as wide as a head."""
    wide, odd = plain(64, 64 * 8), plain(64 * 8, 7)
    return nn.Sequential(plain(64, 64), nn.Sequential(plain(64, 64), Special(64, 64)), wide, odd).requires_grad_(False)


LAYERS = [
    ("none", ["PackedLinear", "PackedLinear", "Special", "PackedLinear", "PackedLinear"]),
    ("float16", ["HalfLinear", "HalfLinear", "Special", "HalfLinear", "HalfLinear"]),
    ("int8", ["Int8Linear", "Int8Linear", "Special", "Int8Linear", "PackedLinear"]),
    ("int4", ["Int4Linear", "Int4Linear", "Special", "Int8Linear", "PackedLinear"]),
    ("fp8", ["Fp8Linear", "Fp8Linear", "Special", "PackedLinear", "PackedLinear"]),
]


@pytest.mark.parametrize(("quantization", "kinds"), LAYERS)
def test_each_plain_layer_of_a_network_becomes_the_closest_kind_it_can(quantization: str, kinds: list[str]) -> None:
    layers = network()
    pack(layers, Quantization(quantization), layers[2])
    assert [type(module).__name__ for module in layers.modules() if not isinstance(module, nn.Sequential)] == kinds


@pytest.mark.parametrize(("share", "keeps"), [(3, False), (4, True)])
@pytest.mark.parametrize("quantization", [Quantization.INT8, Quantization.INT4])
def test_wide_weights_are_kept_where_they_take_a_quarter_of_the_free_memory_at_most(
    quantization: Quantization, share: int, keeps: bool, caplog: pytest.LogCaptureFixture
) -> None:
    first = plain()
    layers = nn.Sequential(first, plain())
    with caplog.at_level("INFO"):
        pack(layers, quantization, free=share * 2 * first.weight.nbytes)
    assert [layer.wide is not None for layer in layers] == [keeps, keeps]
    assert ("as well" if keeps else "up to twice as long") in caplog.text


def test_a_layer_that_float16_cannot_hold_stays_float32() -> None:
    layer = plain()
    layer.weight[0, 0] = 1e5
    layers = nn.Sequential(layer)
    pack(layers, Quantization.FLOAT16)
    assert type(layers[0]) is PackedLinear


def test_there_is_no_packing_on_other_devices_or_for_half_precision() -> None:
    assert not packs(torch.float32, torch.device("cuda"))
    assert not packs(torch.float16, CPU)


def test_what_has_no_kernels_is_refused_with_the_remedy() -> None:
    assert choose("none", "float16", torch.float16, torch.device("cuda"), narrows=False) is Quantization.NONE
    with pytest.raises(LoadError, match="--dtype float32"):
        choose("float16", "bfloat16", torch.bfloat16, CPU, narrows=False)


# On CUDA, as far as a CPU tells


def test_fp8_multiplies_what_is_left_of_weights_and_inputs() -> None:
    """A plain product of the same rounded numbers, a sixteenth off at most; outliers spoil their row alone."""
    layer, inputs = plain(bias=True), torch.randn(5, 64)
    layer.weight[3] *= 1e4
    inputs[2] *= 1e-30
    kept = []
    for numbers in (inputs, layer.weight):
        levels, scales = linear.round_to_fp8(numbers)
        assert levels.dtype is linear.FP8 and bool(torch.isfinite(levels.float()).all())
        kept.append(levels.float() * scales)
        errors = (kept[-1] - numbers).abs()
        assert bool((errors <= numbers.abs() / 16 + scales * 2**-10).all())
    torch.testing.assert_close(Fp8Linear(layer)(inputs), kept[0] @ kept[1].T + layer.bias, rtol=1e-2, atol=2e-2)


def read_pairs(packed: torch.Tensor) -> torch.Tensor:
    """Levels (out, in) out of two in each byte, the first in its upper half."""
    return torch.stack([packed >> 4, packed & 15], dim=-1).flatten(1)


@pytest.fixture
def cuda_int4(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kernels of CUDA in plain float32; the tiles that were asked for."""
    tiles: list[int] = []

    def convert(pairs: torch.Tensor, inner: int) -> torch.Tensor:
        assert pairs.dtype is torch.uint8 and 2 * pairs.shape[1] % (16 * inner) == 0 and len(pairs) % 8 == 0
        tiles.append(inner)
        return pairs

    def multiply(inputs: torch.Tensor, packed: torch.Tensor, group: int, scales: torch.Tensor) -> torch.Tensor:
        assert inputs.dtype is scales.dtype is torch.bfloat16
        scale, zero = scales.float().repeat_interleave(group, dim=0).unbind(dim=-1)  # each (in, out)
        weight = (read_pairs(packed).float() - 8) * scale.T + zero.T
        return (inputs.float() @ weight.T).bfloat16()

    monkeypatch.setattr(torch.ops.aten, "_convert_weight_to_int4pack", convert)
    monkeypatch.setattr(torch.ops.aten, "_weight_int4pack_mm", multiply)
    return tiles


@pytest.mark.parametrize(("inputs", "tiles"), [(256, 8), (64, 4), (96, 2)])
def test_four_bits_on_cuda_are_those_of_a_cpu(cuda_int4: list[int], inputs: int, tiles: int) -> None:
    layer, given = plain(inputs, 48, bias=True), torch.randn(7, inputs)
    there, here = linear.CudaInt4Linear(layer), Int4Linear(layer)
    assert cuda_int4 == [tiles]
    levels, _, _ = linear.round_to_int4(layer.weight)
    assert torch.equal(read_pairs(there.levels), levels.flatten(1).to(torch.uint8))
    torch.testing.assert_close(there(given), here(given), rtol=1e-2, atol=1e-2)


def test_layers_on_cuda_get_kernels_of_cuda_or_stay(cuda_int4: list[int]) -> None:
    assert type(_packed(plain(), Quantization.INT4, False, cuda=True)) is linear.CudaInt4Linear
    assert type(_packed(plain(), Quantization.FP8, False, cuda=True)) is Fp8Linear
    odd = plain(64, 7)
    assert type(_packed(odd.double(), Quantization.INT4, False, cuda=True)) is nn.Linear


WITHOUT_KERNELS = [
    ("fp8", (8, 9), None),
    ("fp8", (9, 0), None),
    ("fp8", (8, 6), "needs a GPU of compute capability 8.9, and this one has 8.6"),
    ("int4", (8, 0), None),
    ("int4", (7, 5), "needs a GPU of compute capability 8.0, and this one has 7.5"),
    ("int8", (9, 0), "leave it out on cuda, or give int4 or fp8"),
    ("float16", (9, 0), "leave it out on cuda, or give int4 or fp8"),
]


@pytest.mark.parametrize(("kind", "capability", "fault"), WITHOUT_KERNELS)
def test_what_a_gpu_has_no_kernels_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, kind: str, capability: tuple[int, int], fault: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with pytest.raises(LoadError, match=fault) if fault else nullcontext():
        assert choose(kind, "bfloat16", torch.bfloat16, torch.device("cuda"), narrows=True) == kind
