"""This server's own forward pass: which networks run on it, that it computes what transformers does, and how."""

import gc
import logging
import os
import shutil
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch._inductor import config
from transformers import PreTrainedModel

from engine.forward.batch import RunningBatch
from engine.kv.arena import KvArena
from engine.kv.row_kv import RowKv
from engine.row import Choice
from models.network import kv_adapter
from models.network.decoder.decoder import Decoder, take_over
from models.network.decoder.layer import DecoderLayer, multiply_gate, turn
from models.network.kv_adapter import ForeignNetwork
from models.network.linear import PackedLinear
from models.network.loader import LoadedModel, load
from models.network.packing import packs
from models.network.quantization import Kernels
from models.text import Text
from server.process.setup import tune_libraries
from tests import tiny
from tests.architectures import GROUPED, SERVED, Served, build, passes_table, plain
from tests.calls import Operations, note_calls
from tests.engine.rows import row_of

TEXT = torch.randint(3, 320, (2, 60), generator=torch.Generator().manual_seed(0))
"""Two texts (2, 60)."""


def decoder(folder: Path, dtype: str = "float32", **sizes: Any) -> Decoder:
    """A network of our own, on torch's kernels."""
    network = load(build(folder, "Llama", {**GROUPED, **sizes}), dtype=dtype, kernels=Kernels.TORCH).network
    assert isinstance(network, Decoder)
    return network


@pytest.mark.parametrize("served", SERVED, ids=str)
def test_each_architecture_runs_on_its_pass_and_computes_what_transformers_does(tmp_path: Path, served: Served) -> None:
    folder = build(tmp_path, served.kind, served.sizes)
    network = load(folder, dtype="float32", kernels=Kernels.TORCH).network
    assert isinstance(network, Decoder if served.own else ForeignNetwork)
    torch.testing.assert_close(network.read(TEXT), plain(folder)(TEXT).logits, atol=5e-5, rtol=5e-5)


@pytest.mark.parametrize("served", [one for one in SERVED if one.own], ids=str)
def test_weights_that_are_kept_in_few_bits_stay_on_their_grid(tmp_path: Path, served: Served) -> None:
    """Norms that became part of them would move each number off the few levels that its group has."""
    folder = build(tmp_path, served.kind, served.sizes)
    network = plain(folder)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 2.0)
    gates = [one.clone() for name, one in network.named_parameters() if "gate" in name and one.dim() == 2]
    expected = network(TEXT).logits
    decoder = take_over(network, 128)
    torch.testing.assert_close(decoder.read(TEXT), expected, atol=2e-4, rtol=5e-5)
    for layer, gate in zip(decoder.layers, gates, strict=True):
        fused = layer.get_submodule("gate_up").get_parameter("weight")
        assert torch.equal(fused[: len(gate)], gate)


def test_passes_of_any_length_use_few_products(tiny_model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN kept one for each number of tokens, half a MiB each, of a thousand numbers."""
    seen = note_calls(monkeypatch, DecoderLayer, "forward", lambda layer, hidden, *_: len(hidden))
    for tokens in range(2, 512):
        tiny_model.network.read(torch.zeros((1, tokens), dtype=torch.long))
    assert len(set(seen)) < 100


COMPILED = """
import sys, torch
from pathlib import Path
from models.network.decoder import decoder
from models.network.kv_store import PassingStore
from models.network.loader import load
from models.network.quantization import Kernels

network = load(Path(sys.argv[1]), dtype="float32", kernels=Kernels.TORCH).network
network.warm_up(100, 4)
with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON_CREATION), torch.inference_mode():
    for tokens in (*range(1, int(sys.argv[2]) + 1), 201):
        print("pass of", tokens, flush=True)
        network.forward(torch.zeros((1, tokens), dtype=torch.long), torch.arange(tokens)[None], None,
                        PassingStore(), (torch.tensor([0]), torch.tensor([-1])))
    decoder.WARM_UP = 0
    network.warm_up(300, 4)
    print("pass of", 300, flush=True)
    network.read(torch.zeros((1, 300), dtype=torch.long))
"""


@pytest.mark.skipif(not packs(torch.float32, torch.device("cpu")), reason="nothing is compiled on this CPU")
@pytest.mark.parametrize(("kept", "longest"), [(None, 28), ("1024", 100)], ids=["default", "all kept"])
def test_nothing_is_compiled_for_prompts_once_a_network_is_warm(tmp_path: Path, kept: str | None, longest: int) -> None:
    """Memory grew by 2.4 MiB at each new number of tokens, for as long as a server met new ones. A server keeps 256
    products, eight for each length on AVX-512: it warmed the longest last, and short prompts were compiled anew.
    """
    caches = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    environ = {name: value for name, value in os.environ.items() if name not in caches}
    if kept is not None:
        environ |= dict.fromkeys(caches, kept)
    tune_libraries(environ)
    told = [sys.executable, "-P", "-c", COMPILED, str(tiny.build(tmp_path)), str(longest)]
    out = subprocess.run(told, env=environ, capture_output=True, text=True, check=True, timeout=120).stdout
    compiles = {int(part.split()[0]): part.count("cache_miss") for part in out.split("pass of ")[1:]}
    assert [tokens for tokens in compiles if compiles[tokens]] == [201, 300]


def test_the_table_of_passes_is_that_of_the_architectures_tested() -> None:
    page = Path(__file__).parents[3] / "docs" / "research" / "architectures.md"
    assert passes_table() in page.read_text(encoding="utf-8")


def test_a_network_that_computes_something_else_than_its_kind_runs_through_transformers_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both copies of the weights were in memory for a while."""
    weights: list[weakref.ref[Tensor]] = []

    def read(*given: Any) -> PreTrainedModel:
        gc.collect()
        assert all(weight() is None for weight in weights), "what is of no more use is still there"
        network = read_network(*given)
        weights.extend(weakref.ref(weight) for weight in network.get_submodule("model").parameters())
        return network

    read_network = kv_adapter.read_network
    monkeypatch.setattr(kv_adapter, "read_network", read)
    norm = transformers.models.llama.modeling_llama.LlamaRMSNorm
    usual: Callable[[Any, Tensor], Tensor] = norm.forward
    monkeypatch.setattr(norm, "forward", lambda self, hidden: usual(self, hidden) + 0.5)
    folder = build(tmp_path, "Llama", GROUPED)
    with caplog.at_level(logging.WARNING):
        network = load(folder, dtype="float32", kernels=Kernels.TORCH).network
    assert isinstance(network, ForeignNetwork)
    torch.testing.assert_close(network.read(TEXT), plain(folder)(TEXT).logits, atol=5e-5, rtol=5e-5)
    (said,) = caplog.messages
    assert said.startswith("LlamaForCausalLM runs through transformers, which is slower")


def test_another_kind_of_network_runs_through_transformers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        load(build(tmp_path, "Mixtral", {**GROUPED, "num_local_experts": 4}), dtype="float32", kernels=Kernels.TORCH)
    assert "MixtralForCausalLM runs through transformers: its MLP is not a gated one" in caplog.messages


@pytest.mark.parametrize("served", [one for one in SERVED if one.own], ids=str)
def test_no_second_copy_of_the_weights_stays(tmp_path: Path, served: Served) -> None:
    network = plain(build(tmp_path, served.kind, served.sizes))
    table = network.get_submodule("model.embed_tokens").get_parameter("weight").data_ptr()
    tied = network.get_output_embeddings().weight.data_ptr() == table  # type: ignore[no-untyped-call]
    size = sum(weight.numel() for weight in network.parameters())
    layers = [weakref.ref(weight) for weight in network.get_submodule("model.layers").parameters()]
    decoder = take_over(network, 128)
    assert (decoder.embed.weight.data_ptr(), decoder.head.weight.data_ptr() == table) == (table, tied)
    assert sum(weight.numel() for weight in decoder.parameters()) <= size
    del network
    gc.collect()
    kept = {weight.data_ptr() for weight in decoder.parameters()}
    assert all(weight() is None or weight().data_ptr() in kept for weight in layers)  # type: ignore[union-attr]


def running(model: LoadedModel, text: Text, rows: int) -> RunningBatch:
    """A batch of a row of 24 tokens and some of 6, 7, ... tokens, whose K and V no prompt had."""
    batch = RunningBatch(model, KvArena(model.kv, 64 * rows, max_rows=rows))
    generator = torch.Generator().manual_seed(0)
    for place in range(rows):
        length = 5 + place if place else 24
        shape = (model.kv.layers, model.kv.kv_heads, length, model.kv.head_dim)
        keys, values = (torch.randn(shape, generator=generator).to(model.kv.dtype) for _ in range(2))
        row = row_of(text, tuple(range(3, 3 + length)))
        row.accept(Choice(20 + place))
        batch.insert(row, RowKv(keys, values))
    return batch


@pytest.mark.parametrize(("dtype", "rows"), [("float32", 3), ("bfloat16", 3), ("bfloat16", 8)])
def test_a_row_among_sixteen_is_that_among_fewer(tmp_path: Path, tiny_text: Text, dtype: str, rows: int) -> None:
    """In bfloat16 as long as both are few cells or both many, since these are read by another kernel."""
    if dtype == "bfloat16" and not packs(torch.bfloat16, torch.device("cpu")):
        pytest.skip("this CPU does not compute in bfloat16")
    model = load(build(tmp_path, "Llama", GROUPED), dtype=dtype, kernels=Kernels.TORCH)
    assert isinstance(model.network, Decoder)
    most = 5 if dtype == "bfloat16" and rows == 3 else 16
    few, many = running(model, tiny_text, rows), running(model, tiny_text, most)
    assert torch.equal(few.step(), many.step()[:rows])


@pytest.mark.skipif(not packs(torch.float32, torch.device("cpu")), reason="this build of torch lacks oneDNN")
def test_a_step_takes_two_dozen_operations_a_layer(tmp_path: Path, tiny_text: Text) -> None:
    """Transformers' modules take 43. Without inference mode, so that composite operations are seen as their parts."""
    layers = 30
    folder = build(tmp_path, "Llama", {**GROUPED, "num_hidden_layers": layers})
    model = load(folder, dtype="float32", kernels=Kernels.TORCH)
    batch = running(model, tiny_text, 4)
    with torch.no_grad(), Operations(lambda function, _: [] if function.is_view else [str(function)]) as seen:
        batch.step()
    counts = Counter(seen.found)
    assert counts["mkldnn._linear_pointwise.default"] == 2 * layers + 1
    assert counts["mkldnn._linear_pointwise.binary"] == 2 * layers
    assert counts.total() <= 24 * layers + 30


PARTS = {"turn": turn, "multiply_gate": multiply_gate}
SCALAR = {"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False, "compile_threads": 1}
"""Two compilations in this process, where inductor would compile six programs more to try the CPU's vectors out."""


@pytest.mark.parametrize("served", [one for one in SERVED if one.own], ids=str)
def test_rotation_and_gated_product_are_compiled_to_one_graph_each(tmp_path: Path, served: Served) -> None:
    """On CUDA each is a kernel, which CUDA graphs capture; here the graphs run operation by operation."""
    network = load(build(tmp_path, served.kind, served.sizes), dtype="float32", kernels=Kernels.TORCH).network
    assert isinstance(network, Decoder)
    calls: Counter[int] = Counter()

    def backend(graph: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            calls[id(graph)] += 1
            return graph.forward(*inputs)

        return run

    expected = network.read(TEXT)
    network.compile_parts(backend)
    for part, plain_part in PARTS.items():
        assert all(getattr(layer, part) is not plain_part for layer in network.layers)
    calls.clear()
    with torch.inference_mode():
        assert torch.equal(network.read(TEXT), expected)
        turning = sum(bool(layer.turns) for layer in network.layers)
        assert len(calls) <= 2 and calls.total() == turning + len(network.layers)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own modules
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
def test_compiled_rotation_and_gated_product_are_those_of_their_operations(tmp_path: Path) -> None:
    network = decoder(tmp_path)
    expected = network.read(TEXT[:1])
    with config.patch(SCALAR):
        network.compile_parts()
        assert all(getattr(layer, part) is not PARTS[part] for layer in network.layers for part in PARTS)
        with torch.inference_mode():
            torch.testing.assert_close(network.read(TEXT[:1]), expected, atol=5e-5, rtol=5e-5)


@pytest.mark.parametrize("wrong", [None, 1.02], ids=["no compiler", "something else"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_that_cannot_be_compiled_stay_operations_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: float | None, dtype: str
) -> None:
    """Logits of a whole network were compared, which in bfloat16 hid errors of some percent in a part."""

    def backend(graph: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        if wrong is None:
            raise OSError("no compiler")
        return lambda *inputs: [wrong * found for found in graph.forward(*inputs)]

    network = decoder(tmp_path, dtype)
    expected = network.read(TEXT)
    network.compile_parts(backend)
    assert torch.equal(network.read(TEXT), expected)
    assert caplog.text.count("is several kernels, which costs speed") == 2
    assert all(getattr(layer, part) is plain for layer in network.layers for part, plain in PARTS.items())


def test_a_part_that_rounds_less_is_taken_though_the_logits_differ(tmp_path: Path) -> None:
    """An 8B's were refused for what its own rounding in bfloat16 did to random weights' logits."""

    def backend(graph: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            wide = [one.double() if isinstance(one, Tensor) and one.is_floating_point() else one for one in inputs]
            return [found.to(torch.bfloat16) for found in graph.forward(*wide)]

        return run

    network = decoder(tmp_path, "bfloat16")
    expected = network.read(TEXT)
    network.compile_parts(backend)
    assert all(getattr(layer, part) is not PARTS[part] for layer in network.layers for part in PARTS)
    assert not torch.equal(network.read(TEXT), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_added_to_a_residual_is_the_product(dtype: torch.dtype) -> None:
    if not packs(dtype, torch.device("cpu")):
        pytest.skip("this CPU lacks the kernels")
    layer = torch.nn.Linear(64, 48, dtype=dtype).requires_grad_(False)
    inputs, residual = torch.randn(3, 5, 64, dtype=dtype), torch.randn(3, 5, 48, dtype=dtype)
    expected = residual.float() + layer(inputs).float()
    torch.testing.assert_close(PackedLinear(layer).add_to(residual, inputs).float(), expected, atol=2e-2, rtol=2e-2)
