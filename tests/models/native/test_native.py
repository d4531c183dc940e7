"""The compiled pass: that it computes what transformers does, whatever is computed beside it, in each of its builds."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from models.errors import LoadError
from models.native.decoder import NativeDecoder, NotNative, take_over_natively
from models.native.library import BUILDS, Library, find_library
from models.network import loader
from models.network.decoder.decoder import OtherLogits, take_over
from models.network.kv_store import KvCells
from models.network.linear import round_to_int4, round_to_int8
from models.network.loader import load
from models.network.quantization import Kernels, Quantization
from tests import tiny
from tests.architectures import GROUPED, SERVED, Served, build, plain

TEXT = torch.randint(3, 320, (2, 60), generator=torch.Generator().manual_seed(0))
"""Two texts (2, 60)."""

FASTEST = find_library()
pytestmark = pytest.mark.skipif(FASTEST is None, reason="nothing was compiled for this CPU: no C++ compiler")
levels = pytest.mark.skipif(not (FASTEST and FASTEST.multiplies_levels), reason="this CPU has no AVX-512 VNNI")


@pytest.fixture(params=BUILDS)
def library(request: pytest.FixtureRequest) -> Library:
    found = find_library(request.param)
    if found is None:
        pytest.skip(f"this CPU cannot run the build for {request.param}")
    return found


def native(
    folder: Path, library: Library | None, dtype: torch.dtype = torch.float32, *kept: Quantization
) -> NativeDecoder:
    assert library is not None
    return take_over_natively(take_over(plain(folder, dtype), 128), library, dtype, *kept)


class Rows:
    """A KvStore of rows side by side, which are read from a column of their own on."""

    def __init__(self, network: NativeDecoder, rows: int, columns: int) -> None:
        fields = network.fields
        dtype = torch.bfloat16 if fields.bf16_cells else torch.float32
        self.keys = torch.zeros((fields.layers, rows, fields.kv_heads, columns, fields.head_dim), dtype=dtype)
        self.values, self.end = self.keys.clone(), 0

    def begin_pass(self, rows: int, new: int) -> KvCells:
        self.end += new
        return KvCells(self.keys[:, :rows], self.values[:, :rows], slice(self.end - new, self.end), slice(0, self.end))


def read_in_chunks(network: NativeDecoder, tokens: Tensor, cuts: list[int]) -> Tensor:
    """Logits (rows, new, vocab) of texts that are read in several passes, which end at `cuts`."""
    store, found, begin = Rows(network, len(tokens), tokens.shape[1]), [], 0
    for end in [*sorted({cut for cut in cuts if 0 < cut < tokens.shape[1]}), tokens.shape[1]]:
        positions = torch.arange(begin, end).expand(len(tokens), -1)
        found.append(network.forward(tokens[:, begin:end], positions, None, store))
        begin = end
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("served", [one for one in SERVED if one.own and "GELU" not in str(one)], ids=str)
def test_each_architecture_computes_what_transformers_does(tmp_path: Path, served: Served, library: Library) -> None:
    folder = build(tmp_path, served.kind, served.sizes)
    found = native(folder, library).read(TEXT)
    torch.testing.assert_close(found, plain(folder)(TEXT).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sizes", [{"head_dim": 80}, {"head_dim": 20}, {"hidden_size": 72, "head_dim": 128}], ids=str)
def test_heads_of_any_even_size_are_computed(tmp_path: Path, sizes: dict[str, int], library: Library) -> None:
    folder = build(tmp_path, "Llama", {**GROUPED, **sizes, "intermediate_size": 100})
    found = native(folder, library).read(TEXT)
    torch.testing.assert_close(found, plain(folder)(TEXT).logits, atol=1e-3, rtol=1e-4)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> NativeDecoder:
    """A small network in float32, on the fastest build."""
    return native(tiny.build(tmp_path_factory.mktemp("native")), FASTEST)


def round_weight(weight: Tensor, quantization: Quantization) -> Tensor:
    """The weights (outputs, k) that the levels of a quantization stand for; k is padded to whole panels for that."""
    k = -(-weight.shape[1] // 32) * 32
    padded = torch.nn.functional.pad(weight, (0, k - weight.shape[1]))
    if quantization is Quantization.INT8:
        levels, scales = round_to_int8(padded)
        wide = levels * scales[:, None].float()
    else:
        levels, scale, zero = round_to_int4(padded)
        wide = ((levels - 8) * scale[..., None] + zero[..., None]).flatten(1)
    return wide[:, : weight.shape[1]]


def round_inputs(values: Tensor) -> Tensor:
    """Numbers (..., k) rounded to 255 levels, in groups of 32 that have a scale each."""
    lacking = -values.shape[-1] % 32
    groups = torch.nn.functional.pad(values, (0, lacking)).reshape(*values.shape[:-1], -1, 32)
    scale = groups.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / 127
    rounded = ((groups / scale).round() * scale).flatten(-2)
    return rounded[..., : values.shape[-1]]


@levels
@pytest.mark.parametrize("quantization", [Quantization.INT8, Quantization.INT4])
@pytest.mark.parametrize("sizes", [{}, {"head_dim": 20, "intermediate_size": 100}], ids=str)
def test_weights_of_few_bits_are_levels(tmp_path: Path, sizes: dict[str, int], quantization: Quantization) -> None:
    folder = build(tmp_path, "Llama", {**GROUPED, "tie_word_embeddings": False, **sizes})
    reference = plain(folder)
    for name, module in reference.named_modules():
        if isinstance(module, torch.nn.Linear):
            kept = Quantization.INT8 if name == "lm_head" else quantization
            module.weight.data = round_weight(module.weight.data, kept)
            module.register_forward_pre_hook(lambda _, inputs: (round_inputs(inputs[0]),))
    expected, found = reference(TEXT).logits, native(folder, FASTEST, torch.float32, quantization).read(TEXT)
    errors = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert errors.median() < 1e-3, "where one number falls into another level, the text goes another way from there"


@levels
@pytest.mark.parametrize("quantization", [Quantization.INT8, Quantization.INT4])
def test_in_few_bits_neither_neighbours_nor_cuts_change_a_bit(tiny_folder: Path, quantization: Quantization) -> None:
    network = native(tiny_folder, FASTEST, torch.float32, quantization)
    together = network.read(TEXT)
    assert torch.equal(network.read(TEXT[1:])[0], together[1])
    for cuts in ([1], [7, 8], [31, 32, 33]):
        assert torch.equal(read_in_chunks(network, TEXT, cuts), together)


@levels
def test_few_bits_are_few_bytes(tiny_folder: Path) -> None:
    sizes = {kind: native(tiny_folder, FASTEST, torch.float32, kind).weight_bytes for kind in Quantization}
    wide = sizes[Quantization.NONE]
    assert wide / 4 < sizes[Quantization.INT8] < 0.3 * wide
    assert wide / 8 < sizes[Quantization.INT4] < sizes[Quantization.INT8]


@given(cuts=st.lists(st.integers(1, 59), max_size=4))
def test_no_cut_of_a_text_into_passes_changes_a_bit(one: NativeDecoder, cuts: list[int]) -> None:
    assert torch.equal(read_in_chunks(one, TEXT, cuts), one.read(TEXT))


@given(rows=st.integers(1, 40), length=st.integers(1, 40), seed=st.integers(0, 99))
def test_a_text_among_others_has_the_bits_it_has_alone(one: NativeDecoder, rows: int, length: int, seed: int) -> None:
    texts = torch.randint(3, 320, (rows, length), generator=torch.Generator().manual_seed(seed))
    together = one.read(texts)
    for row in {0, rows // 2, rows - 1}:
        assert torch.equal(one.read(texts[row : row + 1])[0], together[row])


@given(
    origins=st.lists(st.integers(0, 30), min_size=1, max_size=9),
    holes=st.sets(st.integers(0, 30), max_size=12),
    seed=st.integers(0, 99),
)
def test_rows_read_no_column_masked_out(one: NativeDecoder, origins: list[int], holes: set[int], seed: int) -> None:
    """What lies in such a column, be it as large as can be, changes nothing."""
    rows, columns = len(origins), 40
    generator = torch.Generator().manual_seed(seed)
    valid = torch.ones((rows, columns), dtype=torch.bool)
    for row, origin in enumerate(origins):
        valid[row, :origin] = False
        valid[row, [hole for hole in holes if hole >= origin]] = False
    valid[:, -1] = True
    found = []
    for filler in (0.0, 1e30):
        store = Rows(one, rows, columns)
        noise = torch.randn(store.keys.shape, generator=generator.manual_seed(seed))
        for buffer in (store.keys, store.values):
            buffer.copy_(torch.where(valid[None, :, None, :, None], noise, torch.full_like(noise, filler)))
        store.end = columns - 1
        tokens, positions = torch.full((rows, 1), 7), torch.full((rows, 1), columns - 1)
        found.append(one.forward(tokens, positions, valid[:, None, None], store))
    assert torch.equal(*found) and bool(found[0].isfinite().all())


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_no_number_of_threads_changes_a_bit(tiny_folder: Path, one: NativeDecoder, threads: int) -> None:
    """Seven threads on two cores: each is put off by the system again and again."""
    expected = one.read(TEXT)
    torch.set_num_threads(threads)
    network = native(tiny_folder, FASTEST)
    for _ in range(300):
        assert torch.equal(network.read(TEXT), expected)


def test_a_twin_computes_the_same_with_the_same_weights(one: NativeDecoder) -> None:
    twin = one.twin()
    assert {a.data_ptr() == b.data_ptr() for a, b in zip(twin.buffers(), one.buffers(), strict=True)} == {True}
    assert torch.equal(twin.read(TEXT), one.read(TEXT))


@pytest.mark.skipif(find_library("avx512_bf16") is None, reason="this CPU does not multiply in bfloat16")
def test_in_bfloat16_it_is_nearer_to_float32_than_the_decoder_of_torch(tiny_folder: Path) -> None:
    expected = plain(tiny_folder)(TEXT).logits
    found = {kernels: load(tiny_folder, dtype="bfloat16", kernels=kernels).network.read(TEXT) for kernels in Kernels}
    errors = {kernels: (logits - expected).norm() / expected.norm() for kernels, logits in found.items()}
    assert errors[Kernels.NATIVE] < errors[Kernels.TORCH]
    assert torch.equal(found[Kernels.AUTO], found[Kernels.NATIVE])


@pytest.mark.parametrize("sizes", [{}, {"head_dim": 64}, {"head_dim": 80}, {"head_dim": 20}], ids=str)
def test_in_bfloat16_neighbours_and_cuts_change_no_bit(tmp_path: Path, sizes: dict[str, int], library: Library) -> None:
    if not library.computes_bfloat16:
        pytest.skip("this build computes in float32")
    folder = build(tmp_path, "Llama", {**GROUPED, **sizes})
    network = native(folder, library, torch.bfloat16)
    texts = TEXT.repeat(5, 1)  # 600 tokens
    together, expected = network.read(texts), plain(folder)(TEXT).logits
    assert (together[:2] - expected).norm() < 0.05 * expected.norm()
    for alone in (network.read(TEXT[:1])[0], network.read(TEXT[:1, :17])[0]):
        assert torch.equal(alone, together[0, : len(alone)])
    for cuts in ([1], [7, 8], [31, 32, 33]):
        assert torch.equal(read_in_chunks(network, TEXT, cuts), together[:2])


def test_a_text_that_is_read_in_several_stretches_is_what_transformers_reads(tmp_path: Path, library: Library) -> None:
    folder = build(tmp_path, "Llama", {**GROUPED, "max_position_embeddings": 640})
    network = take_over_natively(take_over(plain(folder), 640), library, torch.float32)
    text = TEXT.repeat(1, 10)
    together = network.read(text)
    torch.testing.assert_close(together, plain(folder)(text).logits, atol=1e-4, rtol=1e-4)
    assert torch.equal(read_in_chunks(network, text, [127, 256, 257, 511, 599]), together)


def test_a_float32_pass_keeps_weights_of_16_bits_in_bfloat16_where_that_holds_them(tmp_path: Path) -> None:
    folder = build(tmp_path, "Llama", GROUPED)
    network, library = plain(folder), FASTEST
    assert library is not None
    for parameter in network.parameters():
        parameter.data = parameter.data.bfloat16().float()
    expected = network(TEXT).logits
    found = take_over_natively(take_over(network, 128), library, torch.bfloat16)
    assert found.embeddings.dtype is torch.bfloat16
    torch.testing.assert_close(found.read(TEXT), expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(NotNative, match="not exact in bfloat16"):
        take_over_natively(take_over(plain(folder), 128), library, torch.bfloat16)


def test_an_activation_that_it_lacks_is_left_to_torch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = build(tmp_path, "Llama", {**GROUPED, "hidden_act": "gelu"})
    with caplog.at_level("INFO"):
        assert not isinstance(load(folder, dtype="float32").network, NativeDecoder)
    assert "its activation is not SiLU" in caplog.text
    with pytest.raises(LoadError, match="--kernels native: they do not compute"):
        load(folder, dtype="float32", kernels=Kernels.NATIVE)


def test_where_nothing_was_compiled_torch_computes_and_the_log_says_what_to_do(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loader, "find_library", lambda: None)
    with caplog.at_level("INFO"):
        assert not isinstance(load(tiny_folder, dtype="float32").network, NativeDecoder)
    assert "apt install g++" in caplog.text
    with pytest.raises(LoadError, match="--kernels native: none were compiled for this CPU"):
        load(tiny_folder, kernels=Kernels.NATIVE)


def test_other_logits_than_torchs_are_found_at_the_start(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usual = NativeDecoder.read
    monkeypatch.setattr(NativeDecoder, "read", lambda network, tokens: usual(network, tokens).roll(1, dims=-1))
    with pytest.raises(OtherLogits, match="relative error"):
        native(tiny_folder, FASTEST)
    with caplog.at_level("WARNING"):
        assert not isinstance(load(tiny_folder, dtype="float32").network, NativeDecoder)
    assert "computes other logits" in caplog.text


def test_a_lack_of_memory_or_threads_is_told_and_the_next_pass_is_right(tmp_path: Path) -> None:
    """An exception of C++ that left the library, in whichever of its threads, ended the program with SIGABRT."""
    program = [sys.executable, "-m", "tests.models.native.short_of_memory", str(tiny.build(tmp_path))]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[-2000:]


def test_ids_outside_the_vocabulary_touch_no_memory_beside_the_embeddings(one: NativeDecoder) -> None:
    """A tokenizer with more tokens than the network made the pass read whatever lies behind its matrix."""
    size = one.fields.vocabulary
    strange, other = (one.read(torch.tensor([[5, token, 7]])) for token in (size, 2**31 - 1))
    assert torch.equal(strange, other) and torch.equal(strange[:, :1], one.read(torch.tensor([[5, 6, 7]]))[:, :1])
