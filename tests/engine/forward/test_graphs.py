"""Decode steps in fixed shapes: the same tokens as without, whatever bucket a step falls into."""

from __future__ import annotations

import gc
import mmap
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from engine.forward.batch import RunningBatch
from engine.forward.graphs import WARMUPS, DecodeGraphs, DecodeStep, GraphError, _capture_on
from engine.kv.arena import KvArena
from engine.messages import Entry, Terms
from engine.pipeline import Pipeline
from models.native.kernels import Kernels
from models.network.kv_adapter import KvStore
from models.network.loader import LoadedModel, load
from models.text import Text
from tests.engine.rows import faulty, finish, pipeline_of, spec, tokens_of

SPECS = [
    replace(spec(row_id, length, max_tokens=40), row_id=row_id) for row_id, length in enumerate((3, 250, 17, 2, 9))
]


def with_graphs(model: LoadedModel, text: Text, capacity: int, rows: int) -> tuple[Pipeline, DecodeGraphs]:
    arena = KvArena(model.kv, capacity, max_rows=rows)
    graphs = DecodeGraphs(model, arena)
    graphs.prepare(lambda: None)
    batch = RunningBatch(model, arena, headroom=0, graphs=graphs)
    return Pipeline(model, text, batch, max_prefill_tokens=64), graphs


@pytest.fixture(scope="module")
def tiny_model(tiny_folder: Path) -> LoadedModel:
    """The tiny network on torch's kernels, which are what a graph captures."""
    return load(tiny_folder, dtype="float32", kernels=Kernels.TORCH)


@pytest.mark.parametrize("terms", [Terms(), Terms(entry=Entry.SHAPE), Terms(closed=True)])
def test_answers_are_the_same_with_graphs(tiny_model: LoadedModel, tiny_text: Text, terms: Terms) -> None:
    plain = pipeline_of(tiny_model, tiny_text, capacity=4096, rows=8)
    graphed, _ = with_graphs(tiny_model, tiny_text, 4096, 8)
    for pipeline in (plain, graphed):
        pipeline.admit(SPECS, terms)
    expected, found = tokens_of(finish(plain)), tokens_of(finish(graphed))
    assert found == expected and all(len(tokens) == 40 for tokens in found.values())


def test_steps_are_replayed_where_a_bucket_holds_them(
    tiny_model: LoadedModel, tiny_text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, _ = with_graphs(tiny_model, tiny_text, 4096, 8)
    shapes: list[tuple[int, int]] = []
    plain = DecodeStep._body

    def noted(step: DecodeStep) -> None:
        shapes.append((step.rows, step.columns))
        plain(step)

    monkeypatch.setattr(DecodeStep, "_body", noted)
    again, graphs = with_graphs(tiny_model, tiny_text, 4096, 8)
    prepared = set(shapes)
    assert len(graphs) == len(prepared) == 8
    shapes.clear()
    again.admit(SPECS)
    finish(again)
    assert {(8, 256), (8, 512)} <= set(shapes) <= prepared


def test_a_view_that_was_not_captured_is_stepped_without_graphs_until_the_batch_is_empty(
    tiny_model: LoadedModel, tiny_text: Text
) -> None:
    pipeline, graphs = with_graphs(tiny_model, tiny_text, 600, 8)
    arena = pipeline.batch.arena
    pipeline.admit([spec(0, 200, max_tokens=5)])
    for _ in range(6):
        pipeline.turn()
    assert (arena.rows, arena.columns) == (1, 600) and graphs.step([5], [204]) is None
    finish(pipeline)
    assert (arena.rows, arena.columns) == (8, 75), "the empty arena has its first proportions again"


def test_a_replay_that_computes_something_else_is_found(tiny_model: LoadedModel) -> None:
    graphs = DecodeGraphs(tiny_model, KvArena(tiny_model.kv, 1024, max_rows=2))

    def forgetful(body: Callable[[], None]) -> Callable[[], None]:
        passes = iter(range(100))

        def replay() -> None:
            body()
            step = next(one for one in graphs._steps if one._body == body)
            step.logits = step.logits + next(passes) + 1

        return replay

    with pytest.raises(GraphError, match="differ"):
        graphs.prepare(lambda: None, forgetful)


def test_preparing_leaves_nothing_that_a_row_could_read(tiny_model: LoadedModel, tiny_text: Text) -> None:
    pipeline, graphs = with_graphs(tiny_model, tiny_text, 1024, 4)
    pipeline.check()
    assert not pipeline.batch.arena.valid.any() and len(graphs) > 0


def test_a_step_that_fails_leaves_the_batch_as_it_was(tiny_model: LoadedModel, tiny_text: Text) -> None:
    hits = iter([False] * 12 + [True] + [False] * 1000)

    def shortage(store: KvStore, logits: Tensor) -> Tensor:
        if isinstance(store, DecodeStep) and next(hits):
            raise torch.OutOfMemoryError("injected")
        return logits

    model = faulty(tiny_model, shortage)
    pipeline, _ = with_graphs(model, tiny_text, 1024, 4)
    pipeline.admit([spec(0, max_tokens=20), spec(1, max_tokens=20)])
    plain = pipeline_of(tiny_model, tiny_text)
    plain.admit([spec(0, max_tokens=20), spec(1, max_tokens=20)])
    assert tokens_of(finish(pipeline)) == tokens_of(finish(plain))
    assert pipeline.shape().capacity_tokens < 1024


def test_a_replay_that_computes_nothing_is_found(tiny_model: LoadedModel) -> None:
    """A graph captured on another device's stream is empty: the logits of the pass before it were taken for its own."""
    graphs = DecodeGraphs(tiny_model, KvArena(tiny_model.kv, 1024, max_rows=2))

    def empty(body: Callable[[], None]) -> Callable[[], None]:
        body()
        return lambda: None

    with pytest.raises(GraphError, match="differ"):
        graphs.prepare(lambda: None, empty)


def test_a_bucket_is_as_wide_as_the_window_wherever_that_has_got_to(
    tiny_model: LoadedModel, tiny_text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long row that has left had put all others behind it, and every step read its columns."""
    plain, widths = DecodeStep._body, list[int]()

    def noted(step: DecodeStep) -> None:
        widths.append(step.columns)
        plain(step)

    monkeypatch.setattr(DecodeStep, "_body", noted)
    graphed, _ = with_graphs(tiny_model, tiny_text, 4096, 8)
    widths.clear()
    eager = pipeline_of(tiny_model, tiny_text, capacity=4096)
    for pipeline in (graphed, eager):
        pipeline.admit([spec(0, 300, max_tokens=5), spec(1, 3, max_tokens=60)])
    assert tokens_of(finish(graphed)) == tokens_of(finish(eager))
    assert set(widths) == {256, 512} and widths.count(512) < 6 and widths[-1] == 256


def test_memory_is_given_back_before_other_is_taken_after_a_shortage(
    tiny_model: LoadedModel, tiny_text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views in graphs, and in the frames of the pass that failed, kept the old buffers while new ones were taken."""
    taken: list[weakref.ref[mmap.mmap]] = []
    alive: list[int] = []

    class Noted(mmap.mmap):
        def __new__(cls, fileno: int, length: int) -> Noted:
            alive.append(sum(ref() is not None for ref in taken))
            made = super().__new__(cls, fileno, length)
            taken.append(weakref.ref(made))
            return made

    monkeypatch.setattr("engine.kv.arena.mmap.mmap", Noted)
    hits = iter([False] * 12 + [True] + [False] * 1000)
    heads = (tiny_model.kv.kv_heads, 1, tiny_model.kv.head_dim)

    def shortage(store: KvStore, logits: Tensor) -> Tensor:
        if isinstance(store, DecodeStep) and next(hits):
            kept = store.write(0, *torch.zeros(2, store.rows, *heads))
            raise torch.OutOfMemoryError(f"injected beside {len(kept)} views")
        return logits

    pipeline, graphs = with_graphs(faulty(tiny_model, shortage), tiny_text, 1024, 4)
    pipeline.admit([spec(0, max_tokens=20), spec(1, max_tokens=20)])
    gc.disable()
    try:
        finish(pipeline)
    finally:
        gc.enable()
    assert alive == [0, 1, 0, 1], "keys, then values; then both anew, with nothing left of the old ones"
    assert len(graphs) == 0


def test_capture_is_on_the_executors_own_device_and_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[object] = []

    @contextmanager
    def entered(*args: object, **flags: object) -> Iterator[None]:
        log.append((args, flags))
        yield

    stream, graph = MagicMock(name="stream"), MagicMock(name="graph")
    made = MagicMock(return_value=stream)
    monkeypatch.setattr(torch.cuda, "Stream", made)
    for name in ("device", "stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, partial(entered, name))
    for name, found in (("CUDAGraph", graph), ("graph_pool_handle", "pool"), ("current_stream", MagicMock())):
        monkeypatch.setattr(torch.cuda, name, lambda *_, found=found: found)
    device = torch.device("cuda:1")
    replay = _capture_on(device)(lambda: log.append("body"))
    made.assert_called_once_with(device)
    graphed = (("graph", graph), {"pool": "pool", "stream": stream})
    warm: list[object] = [(("stream", stream), {}), *["body"] * WARMUPS]
    assert log == [(("device", device), {}), *warm, graphed, "body"] and replay is graph.replay
