"""Decode steps in fixed shapes: the same tokens as without, in whatever proportions the arena looks at its memory."""

from __future__ import annotations

import gc
import logging
import mmap
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from engine.forward import graphs as decode
from engine.forward.batch import RunningBatch
from engine.forward.graphs import WARMUPS, Capture, DecodeGraphs, DecodeStep, capture_nothing, capture_on
from engine.kv.arena import KvArena
from engine.lifecycle import Lifecycle
from engine.messages import BatchPolicy, Entry
from engine.row import Row
from engine.torch_device import TorchDevice
from models.network.attention import gather_attention
from models.network.kv_store import KvStore
from models.network.loader import LoadedModel, load
from models.network.quantization import Kernels
from models.text import Text
from tests.calls import Operations, note_calls
from tests.engine.forward.recorded import Recorder
from tests.engine.forward.test_decode import WISHES, job, waits
from tests.engine.forward.test_parity import MIXED, Schedule, assert_as_if_alone
from tests.engine.invariants import check
from tests.engine.rows import admitted, answers_of, device_of, faulty, finish, lifecycle_of, spec, turns
from tests.reference import Reference
from tests.tiny import Net

SPECS = [spec(row_id, length, max_tokens=40) for row_id, length in enumerate((3, 250, 17, 2, 9))]
TWO = [spec(0, max_tokens=20), spec(1, max_tokens=20)]
Make = Callable[[torch.device], Capture]


def graphs_of(model: LoadedModel, capacity: int, rows: int, capture: Make) -> tuple[KvArena, DecodeGraphs]:
    arena = KvArena(model.kv, capacity, max_rows=rows, by_token=True)
    return arena, DecodeGraphs(model, arena, gather_attention, capture)


def with_graphs(
    model: LoadedModel, text: Text, capacity: int, rows: int, capture: Make = capture_nothing, *, ahead: bool = False
) -> Lifecycle[Row]:
    arena, graphs = graphs_of(model, capacity, rows, capture)
    graphs.prepare()
    batch = RunningBatch(model, arena, headroom=0, graphs=graphs)
    return Lifecycle(TorchDevice(model, text, batch, max_prefill_tokens=64, ahead=ahead))


@pytest.fixture(scope="module")
def net(tiny_folder: Path, tiny_text: Text) -> Net:
    """On torch's kernels, which are what a graph captures."""
    return Net(load(tiny_folder, dtype="float32", kernels=Kernels.TORCH), tiny_text)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@torch.inference_mode()
@pytest.mark.parametrize("capacity", [600, 4096])
@pytest.mark.parametrize("terms", [BatchPolicy(), BatchPolicy(entry=Entry.SHAPE), BatchPolicy(closed=True)])
def test_answers_are_the_same_with_graphs(net: Net, recorder: Recorder, terms: BatchPolicy, capacity: int) -> None:
    """With 600 tokens the arena is viewed in other proportions while rows run, which were steps without graphs."""
    expected = answers_of(lifecycle_of(*net, capacity=capacity), SPECS, terms)
    graphed, before = with_graphs(*net, capacity, 8, recorder), recorder.replays
    assert answers_of(graphed, SPECS, terms) == expected and {*map(len, expected.values())} == {40}
    assert len(recorder.graphs) == 4, "1, 2, 4 and 8 rows, each captured once"
    assert recorder.replays > before


@torch.inference_mode()
def test_inputs_are_written_when_rows_change_and_else_advance_there(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 256 rows, building them from lists for each step took a third of the host's time."""
    lifecycle, specs = with_graphs(*net, 4096, 4, ahead=True), [spec(0, 5, max_tokens=40), spec(1, 9, max_tokens=20)]
    writes = note_calls(monkeypatch, DecodeStep, "_write", lambda step, live, tokens: live)
    assert answers_of(lifecycle, specs) == answers_of(lifecycle_of(*net), specs)
    assert writes == [2, 1], "once for both, once when the second has left"


@torch.inference_mode()
def test_graphs_are_fed_from_the_device(net: Net) -> None:
    """Whatever rows wish, as they join and leave."""
    jobs = [job(row_id, 5 + 4 * row_id, 6 + 3 * row_id, row_id) for row_id in range(len(WISHES) - 1)]
    expected = answers_of(lifecycle_of(*net, capacity=400, rows=4), jobs)
    assert answers_of(with_graphs(*net, 400, 4, ahead=True), jobs) == expected


class GraphedSchedule(Schedule):
    """A random schedule whose decode steps are replayed."""

    def __init__(self, seed: int, model: LoadedModel, text: Text, capture: Make) -> None:
        super().__init__(seed, model, text)
        old = device_of(self.lifecycle).batch.arena
        self.lifecycle = with_graphs(model, text, old.capacity_tokens, old.max_rows, capture)


@torch.inference_mode()
@pytest.mark.parametrize("terms", [[BatchPolicy()], *MIXED])
def test_rows_of_a_random_schedule_are_replayed_to_what_transformers_generates(
    terms: list[BatchPolicy], net: Net, tiny_reference: Reference, recorder: Recorder
) -> None:
    schedule = GraphedSchedule([[BatchPolicy()], *MIXED].index(terms) % 2, *net, recorder)
    schedule.terms, prepared = terms, recorder.replays
    schedule.run(rows=10)
    assert_as_if_alone(schedule, tiny_reference)
    assert recorder.replays > prepared or all(each.entry is Entry.SHAPE for each in terms)


@torch.inference_mode()
def test_a_graph_holds_in_every_view_of_the_memory(net: Net, recorder: Recorder) -> None:
    """Steps ran without graphs from the first time on that the arena had other rows and columns."""
    lifecycle = with_graphs(*net, 600, 8, recorder)
    arena, before = device_of(lifecycle).batch.arena, recorder.replays
    turns(admitted(lifecycle, [spec(0, 200, max_tokens=5)]), 6)
    assert (arena.rows, arena.columns) == (1, 600)
    finish(lifecycle)
    assert recorder.replays - before == 4, "the first token is prefill's"


@torch.inference_mode()
def test_graphs_are_captured_anew_once_the_memory_has_moved(net: Net, recorder: Recorder) -> None:
    """After one lack of memory all steps ran without graphs for the life of the process."""
    hits = iter([False] * 12 + [True] + [False] * 1000)

    def shortage(store: KvStore, logits: Tensor) -> Tensor:
        if isinstance(store, DecodeStep) and not gone and next(hits):
            gone.append(len(recorder.graphs))
            raise torch.OutOfMemoryError("injected")
        return logits

    gone: list[int] = []
    made = with_graphs(faulty(net.model, shortage), net.text, 1024, 4, partial(pass_on, recorder))
    assert answers_of(made, TWO) == answers_of(lifecycle_of(*net), TWO)
    assert made.table.shape().capacity_tokens < 1024 and gone == [3]
    assert len(recorder.graphs) == 4, "of the bucket that was used again"
    assert recorder.graphs[-1].replays > 10


def pass_on(recorder: Recorder, device: torch.device) -> Capture:
    """Bodies run as they are until a graph is gone, so that faults in them are met; replays would not see them."""

    def capture(body: Callable[[], None]) -> Callable[[], None]:
        replay = recorder(device)(body)
        return replay if len(recorder.graphs) > 3 else body

    return capture


@torch.inference_mode()
def test_rows_with_holes_are_stepped_under_a_mask(net: Net, recorder: Recorder) -> None:
    lifecycle, terms = with_graphs(*net, 1024, 4, recorder), BatchPolicy(entry=Entry.SHAPE)
    turns(admitted(lifecycle, [spec(0, max_tokens=30)], terms), 4)
    before = recorder.replays
    assert before > 3
    turns(admitted(lifecycle, [spec(1, 9, max_tokens=4)], terms), 3)
    assert device_of(lifecycle).batch.arena.has_holes and recorder.replays == before
    finish(lifecycle)


@pytest.mark.parametrize("replayed", [None, 1.5], ids=["nothing", "something else"])
@torch.inference_mode()
def test_a_replay_that_differs_is_not_used(net: Net, caplog: pytest.LogCaptureFixture, replayed: float | None) -> None:
    """A graph captured on another device's stream is empty: the logits of the pass before it were taken for its own."""

    def wrong(_: torch.device) -> Capture:
        def capture(body: Callable[[], None]) -> Callable[[], None]:
            step = body.__self__  # type: ignore[attr-defined]

            def replay() -> None:
                if replayed is not None:
                    step.logits.fill_(replayed)

            return replay

        return capture

    with caplog.at_level(logging.WARNING):
        graphed = with_graphs(*net, 1024, 2, wrong)
    assert caplog.text.count("without a CUDA graph") == 2 and "replay differs" in caplog.text
    assert answers_of(graphed, SPECS[2:4]) == answers_of(lifecycle_of(*net), SPECS[2:4])


@torch.inference_mode()
def test_few_rows_of_few_heads_have_a_bucket_an_order_of_length(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two K heads 64 rows are cut as 16 rows of eight are, whose long rows were left to few multiprocessors."""
    monkeypatch.setattr(decode, "LENGTHS", 8)
    monkeypatch.setattr(decode, "FEW_HEADS", 2 * net.model.kv.kv_heads)
    _, graphs = graphs_of(net.model, 4096, 5, capture_nothing)
    shapes = [(step.rows, step.longest) for step in graphs._steps]
    assert shapes == [(1, 8), (1, 64), (1, 512), (2, 8), (2, 64), (2, 512), (4, 512), (5, 512)]


@torch.inference_mode()
def test_a_step_waits_for_the_device_when_it_is_captured_and_never_again(net: Net) -> None:
    arena, graphs = graphs_of(net.model, 1024, 4, capture_nothing)
    batch = RunningBatch(net.model, arena, headroom=0, graphs=graphs)
    lifecycle = admitted(Lifecycle(TorchDevice(*net, batch, max_prefill_tokens=64)), SPECS[2:4])
    while not batch.rows:
        lifecycle.turn()
    graphs.release()
    for expected in (2, 0, 0):
        with Operations(waits) as seen:
            batch.step()
        assert len(seen.found) == expected


def test_preparing_leaves_nothing_that_a_row_could_read(net: Net) -> None:
    lifecycle = with_graphs(*net, 1024, 4)
    check(lifecycle.table)
    arena = device_of(lifecycle).batch.arena
    assert not arena.valid.any() and not arena.buffers[0].any() and not arena.buffers[1].any()


def test_memory_is_given_back_before_other_is_taken_after_a_shortage(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views in graphs, and in the frames of the pass that failed, kept the old buffers while new ones were taken."""
    taken: list[weakref.ref[mmap.mmap]] = []
    alive: list[int] = []

    class Noted(mmap.mmap):
        def __new__(cls, fileno: int, length: int) -> Noted:
            alive.append(sum(ref() is not None for ref in taken))
            made = super().__new__(cls, fileno, length)
            taken.append(weakref.ref(made))
            return made

    monkeypatch.setattr("engine.kv.memory.mmap.mmap", Noted)
    hits = iter([False] * 12 + [True] + [False] * 1000)
    heads = (net.model.kv.kv_heads, 1, net.model.kv.head_dim)

    def shortage(store: KvStore, logits: Tensor) -> Tensor:
        if isinstance(store, DecodeStep) and next(hits):
            kept = store.write(0, *torch.zeros(2, store.rows, *heads))
            raise torch.OutOfMemoryError(f"injected beside {len(kept)} views")
        return logits

    lifecycle = with_graphs(faulty(net.model, shortage), net.text, 1024, 4)
    gc.disable()
    try:
        finish(lifecycle, TWO)
    finally:
        gc.enable()
    assert alive == [0, 1, 0, 1], "keys, then values; then both anew, with nothing left of the old ones"


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
    replay = capture_on(device)(lambda: log.append("body"))
    made.assert_called_once_with(device)
    flags = {"pool": "pool", "stream": stream, "capture_error_mode": "thread_local"}
    warm: list[object] = [(("stream", stream), {}), *["body"] * WARMUPS]
    assert log == [(("device", device), {}), *warm, (("graph", graph), flags), "body"] and replay is graph.replay
