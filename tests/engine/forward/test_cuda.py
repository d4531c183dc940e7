"""Behaviour that only a CUDA device shows: captured graphs, streams, and copies that attention must not make."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from engine.forward.batch import RunningBatch
from engine.forward.graphs import DecodeGraphs
from engine.kv.arena import KvArena
from engine.messages import Terms
from engine.pipeline import Pipeline
from models.network.attention import masked_attention
from models.network.kv_adapter import KvStore
from models.network.loader import LoadedModel, load
from models.text import Text
from tests.engine.rows import faulty, finish, spec, tokens_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and none is visible"),
]

SPECS = [spec(0, 300, max_tokens=5), spec(1, 3, max_tokens=60), spec(2, 40, max_tokens=30)]


@pytest.fixture(params=["cuda:0", "cuda:1"])
def cuda_model(request: pytest.FixtureRequest, tiny_model: LoadedModel) -> LoadedModel:
    if torch.device(request.param).index >= torch.cuda.device_count():
        pytest.skip("needs a second CUDA device")
    return load(tiny_model.folder, dtype="float32", device=request.param)


def answers(model: LoadedModel, text: Text, *, graphs: bool) -> dict[int, list[int]]:
    arena = KvArena(model.kv, 4096, max_rows=8)
    made = DecodeGraphs(model, arena) if graphs else None
    if made is not None:
        made.prepare(lambda: None)
    pipeline = Pipeline(model, text, RunningBatch(model, arena, headroom=0, graphs=made), max_prefill_tokens=64)
    pipeline.admit(SPECS, Terms())
    return tokens_of(finish(pipeline))


@torch.inference_mode()
def test_captured_steps_answer_as_eager_ones_do_on_every_device(cuda_model: LoadedModel, tiny_text: Text) -> None:
    assert answers(cuda_model, tiny_text, graphs=True) == answers(cuda_model, tiny_text, graphs=False)


@torch.inference_mode()
def test_memory_is_given_back_after_a_shortage_with_graphs(cuda_model: LoadedModel, tiny_text: Text) -> None:
    device, hits = cuda_model.device, iter([False] * 4 + [True] + [False] * 1000)

    def shortage(store: KvStore, logits: Tensor) -> Tensor:
        if isinstance(store, KvArena) and next(hits):
            raise torch.OutOfMemoryError("injected")
        return logits

    model = faulty(cuda_model, shortage)
    arena = KvArena(model.kv, 600, max_rows=8)
    size = 2 * arena.keys.nbytes
    graphs = DecodeGraphs(model, arena)
    graphs.prepare(lambda: None)
    pipeline = Pipeline(model, tiny_text, RunningBatch(model, arena, headroom=0, graphs=graphs), max_prefill_tokens=64)
    before = torch.cuda.memory_allocated(device)
    pipeline.admit([replace(SPECS[0], row_id=9)])
    torch.cuda.reset_peak_memory_stats(device)
    finish(pipeline)
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
