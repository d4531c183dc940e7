"""Behaviour that only a CUDA device shows: captured graphs, streams, and copies that attention must not make."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from engine.forward.batch import RunningBatch
from engine.forward.graphs import Capture, DecodeGraphs, capture_nothing, capture_on
from engine.kv.arena import KvArena
from engine.lifecycle import Lifecycle
from engine.torch_device import TorchDevice
from models.network.attention import flash_attention, gather_attention, masked_attention
from models.network.decoder.decoder import Decoder
from models.network.decoder.layer import turn
from models.network.loader import LoadedModel, load
from models.text import Text
from tests.engine.forward.test_graphs import with_graphs
from tests.engine.rows import admitted, answers_of, device_of, finish, lifecycle_of, short_in, spec
from tests.models.network.runs import list_runs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # other versions of torch warn of other things
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and none is visible"),
]

READERS = (flash_attention, gather_attention)
SPECS = [spec(0, 300, max_tokens=5), spec(1, 3, max_tokens=60), spec(2, 40, max_tokens=30)]


@pytest.fixture(params=["cuda:0", "cuda:1"])
def cuda_model(request: pytest.FixtureRequest, tiny_model: LoadedModel) -> LoadedModel:
    if torch.device(request.param).index >= torch.cuda.device_count():
        pytest.skip("needs a second CUDA device")
    return load(tiny_model.folder, dtype="float32", device=request.param)


def answers(model: LoadedModel, text: Text, capture: Callable[[torch.device], Capture] | None) -> dict[int, list[int]]:
    by_token = partial(KvArena, by_token=True)
    plain = lifecycle_of(model, text, capacity=4096, chunk=64, arena=by_token)
    return answers_of(with_graphs(model, text, 4096, 8, capture) if capture else plain, SPECS)


def test_rotation_and_gated_product_are_compiled(cuda_model: LoadedModel) -> None:
    assert isinstance(cuda_model.network, Decoder)
    assert all(layer.turn is not turn for layer in cuda_model.network.layers)


@torch.inference_mode()
def test_captured_steps_answer_as_eager_ones_do_on_every_device(cuda_model: LoadedModel, tiny_text: Text) -> None:
    masked = answers(cuda_model, tiny_text, None)
    assert answers(cuda_model, tiny_text, capture_on) == answers(cuda_model, tiny_text, capture_nothing) == masked


@torch.inference_mode()
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(2, 64), (8, 128), (1, 256)])
def test_flash_attention_of_runs_is_the_gathered_one(kv_heads: int, head_dim: int) -> None:
    lengths, pitch = [1, 700, 64, 129], 1000
    keys, values = torch.randn(2, len(lengths) * pitch, kv_heads, head_dim, device="cuda", dtype=torch.bfloat16)
    query = torch.randn(len(lengths), 8, head_dim, device="cuda", dtype=torch.bfloat16)
    starts = [row * pitch + 900 - length for row, length in enumerate(lengths)]
    runs = [list_runs(starts, lengths, 4096, each, query.device) for each in READERS]
    found, expected = (each(query, keys, values, one, None) for each, one in zip(READERS, runs, strict=True))
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)


@torch.inference_mode()
def test_nothing_in_a_captured_step_waits_for_the_device(tiny_folder: Path, tiny_text: Text) -> None:
    model = load(tiny_folder, dtype="bfloat16", device="cuda:0")
    arena = KvArena(model.kv, 4096, max_rows=8)
    graphs = DecodeGraphs(model, arena)
    graphs.prepare()
    batch = RunningBatch(model, arena, headroom=0, graphs=graphs)
    lifecycle = admitted(Lifecycle(TorchDevice(model, tiny_text, batch, max_prefill_tokens=512)), SPECS)
    for _ in range(4):
        lifecycle.turn()
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@torch.inference_mode()
def test_memory_is_given_back_after_a_shortage_with_graphs(cuda_model: LoadedModel, tiny_text: Text) -> None:
    device, model = cuda_model.device, short_in(cuda_model, KvArena, 4)
    lifecycle = with_graphs(model, tiny_text, 600, 8, capture_on)
    size = 2 * device_of(lifecycle).batch.arena.buffers[0].nbytes
    before = torch.cuda.memory_allocated(device)
    lifecycle.table.admit([replace(SPECS[0], row_id=9)])
    torch.cuda.reset_peak_memory_stats(device)
    finish(lifecycle)
    assert torch.cuda.memory_allocated(device) < before + size / 2


@torch.inference_mode()
def test_a_later_chunk_with_grouped_queries_copies_no_keys_or_values() -> None:
    rows, kv_heads, group, new, columns, dim = 1, 2, 8, 64, 65536, 64
    key, value = torch.randn(2, rows, kv_heads, columns, dim, device="cuda", dtype=torch.bfloat16).unbind()
    query = torch.randn(rows, kv_heads * group, new, dim, device="cuda", dtype=torch.bfloat16)
    masked_attention(nn.Identity(), query, key, value, None)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    masked_attention(nn.Identity(), query, key, value, None)
    mask = group * new * columns * 2
    assert torch.cuda.max_memory_allocated() - before < 3 * mask + group * key.nbytes
