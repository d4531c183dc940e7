"""The way of rows through a device: who is where, who comes first, and who is hit when something goes wrong."""

import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import pytest

from engine.device import OutOfMemoryError
from engine.forward.batch import RunningBatch
from engine.kv.host_store import HostStore
from engine.kv.prefix_cache import PrefixCache
from engine.lifecycle import Lifecycle
from engine.messages import BatchPolicy, Cause, Entry, HandedBack, RowId, RowSpec
from engine.row import Row
from engine.simulated.batch import SimulatedBatch
from engine.simulated.device import SimulatedDevice
from tests.calls import note_calls
from tests.engine import rows as play
from tests.engine.rows import admitted, answers_of, device_of, ends_of, finish, lifecycle_of, spec, tokens_of, turns
from tests.engine.simulated.device import STEADY
from tests.tiny import Net

Run = Callable[..., Lifecycle[Row]]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who joins the batch and who is taken out."""
    log = note_calls(monkeypatch, RunningBatch, "insert", lambda _, row, *kv, **more: f"in {row.row_id}")
    return note_calls(monkeypatch, RunningBatch, "extract", lambda _, row: f"out {row.row_id}", into=log)


@pytest.fixture
def run(net: Net) -> Run:
    """Makes a lifecycle of the tiny model."""
    return partial(lifecycle_of, *net)


def serves(lifecycle: Lifecycle[Row], run: Run, one: RowSpec) -> None:
    """Whatever happened before, a new row generates what it should."""
    assert answers_of(lifecycle, [one]) == answers_of(run(), [one])


# Stages


def test_a_row_that_ends_with_its_first_token_never_enters_the_batch(run: Run, log: list[str]) -> None:
    answers = answers_of(run(), [spec(0, max_tokens=1), spec(1, max_tokens=2)])
    assert log == ["in 1"] and list(map(len, answers.values())) == [1, 2]


def test_running_rows_go_on_while_a_long_prompt_is_prefilled(run: Run) -> None:
    lifecycle = admitted(run(chunk=5), [spec(0, max_tokens=20)])
    lifecycle.turn()
    lifecycle.table.admit([spec(1, length=30)])
    turns = [[update.row_id for update in lifecycle.turn()] for _ in range(13)]
    assert turns == [[0], []] * 5 + [[0], [1], [0, 1]]


def test_rows_join_in_the_order_of_their_admission(run: Run, log: list[str]) -> None:
    """Also when the prefill, which works longest first, ended a later one earlier."""
    answers_of(run(rows=2), [spec(0, length=4), spec(1, length=9), spec(2, length=2), spec(3, length=30)])
    assert log == ["in 0", "in 1", "in 2", "in 3"]


def test_the_worst_ranked_leaves_for_lack_of_memory_and_returns_when_there_is_room(run: Run, log: list[str]) -> None:
    """60 tokens hold three rows of 20 or two of 30. Row 3 has moved to the first place when it must leave."""
    specs = [spec(row_id, 5, max_tokens) for row_id, max_tokens in enumerate((2, 40, 30, 30))]
    updates = finish(run(capacity=60, rows=3), specs)
    assert log == ["in 0", "in 1", "in 2", "in 3", "out 3", "out 2", "in 2", "in 3"]
    assert [*ends_of(updates)] == [0, 1, 2, 3]


# Cancellation


def test_a_row_that_is_cancelled_in_prefill_gives_its_memory_back(run: Run) -> None:
    lifecycle = admitted(run(chunk=8), [spec(0, 40), spec(1, 30)])
    assert lifecycle.turn() == []
    group = device_of(lifecycle).prefill
    assert group is not None and group._keys.shape[1] * group._keys.shape[3] == 80
    lifecycle.table.cancel([1])
    assert group._keys.shape[1] * group._keys.shape[3] == 40
    gone = weakref.ref(group._keys)
    del group
    lifecycle.table.cancel([0])
    assert lifecycle.table.idle and gone() is None
    serves(lifecycle, run, spec(2, 20))


def test_a_row_that_is_cancelled_while_staged_gives_its_memory_back(run: Run) -> None:
    lifecycle = admitted(run(rows=1), [spec(0), spec(1)])
    lifecycle.turn()
    lifecycle.turn()
    assert (lifecycle.table.shape().rows, lifecycle.table.shape().staged) == (1, 1)
    (staged,) = lifecycle.table.staged
    assert staged.kv is not None
    gone = weakref.ref(staged.kv.keys)
    del staged
    lifecycle.table.cancel([1])
    assert gone() is None and lifecycle.table.shape().staged == 0
    assert tokens_of(finish(lifecycle)).keys() == {0}


def test_rows_of_every_stage_can_be_cancelled_at_once(run: Run) -> None:
    lifecycle = admitted(run(rows=1, chunk=8), [spec(0), spec(1)])
    lifecycle.turn()
    lifecycle.table.admit([spec(2, 40)])
    lifecycle.turn()
    lifecycle.table.admit([spec(3)])
    lifecycle.table.cancel([0, 1, 2, 3])
    assert lifecycle.table.idle
    serves(lifecycle, run, spec(4))


# Rules on the engine and on the simulator: they must be the same

CLOSED = BatchPolicy(closed=True)
SHAPE = BatchPolicy(entry=Entry.SHAPE)
BLOCKING = BatchPolicy(entry=Entry.EMBED_BLOCKING)


Make = Callable[..., Lifecycle[Any]]
"""A device of so many tokens, rows and columns of headroom, beside so many bytes of host memory."""


def engine(net: Net, capacity: int, rows: int, headroom: int, host_bytes: float = math.inf) -> Lifecycle[Any]:
    return lifecycle_of(*net, capacity=capacity, rows=rows, headroom=headroom, store=HostStore(host_bytes))


def simulated(_: Net, capacity: int, rows: int, headroom: int, host_bytes: float = math.inf) -> Lifecycle[Any]:
    batch = SimulatedBatch(capacity, rows, headroom)
    return Lifecycle(SimulatedDevice(batch, STEADY, 512, PrefixCache(0, chunk=1)), HostStore(host_bytes))


@pytest.fixture(params=[engine, simulated])
def make(request: pytest.FixtureRequest, net: Net) -> Make:
    return partial(request.param, net)


def test_a_closed_batch_that_fills_the_device_runs_whole(make: Make) -> None:
    """It was measured to fit by its scheduler, so its rows need no columns to spare."""
    twin = make(4 * 28, 4, 32)
    twin.table.admit([spec(row_id, 20, max_tokens=30) for row_id in range(4)], replace(CLOSED, iterations=8))
    steps = []
    while not (handed_back := twin.table.take_handed_back()):
        turns(twin)
        steps.append(play.running(twin))
    assert steps == [[], *[[0, 1, 2, 3]] * 7, []]
    assert [one.row_ids for one in handed_back] == [(0, 1, 2, 3)]


@pytest.mark.parametrize("terms", [CLOSED, BatchPolicy(), SHAPE], ids=["closed", "open", "by shape"])
def test_nobody_joins_a_closed_batch_and_open_rows_are_read_meanwhile(make: Make, terms: BatchPolicy) -> None:
    twin = make(400, 4, 0)
    twin.table.admit([spec(0, 3, 4)], CLOSED)
    twin.table.admit([spec(1, 3, 3)], terms)
    begun: list[RowId] = []
    ends: list[RowId] = []
    while not ends:
        assert play.running(twin) in ([], [0])
        ends = [*ends_of(turns(twin))]
        begun += twin.table.begun
    assert (ends, begun) == ([0], [0, 1] if terms == BatchPolicy() else [0])
    assert [*ends_of(finish(twin))] == [1]


# Rules that once differed


def test_a_closed_batch_and_a_scored_prompt_are_prefilled_though_rows_enter_by_shape(make: Make) -> None:
    """There is nothing to enter into before a closed batch runs, and only prefill scores a prompt."""
    twin = make(400, 4, 0)
    twin.table.admit([spec(0, 5, 3), spec(1, 5, 3)], replace(SHAPE, closed=True))
    twin.table.admit([spec(2, 5, 3, prompt_logprobs=0)], SHAPE)
    updates = turns(twin)
    assert (play.running(twin), twin.table.shape().staged) == ([], 2)
    updates += turns(twin)
    assert play.running(twin) == [0, 1]
    assert play.lengths_of(updates + finish(twin)) == dict.fromkeys(range(3), 3)


def test_rows_that_outgrow_the_empty_device_fail_one_by_one_and_alike(make: Make) -> None:
    twin = make(10, 4, 0)
    twin.table.admit([spec(0, 20, 3)])
    twin.table.admit([spec(1, 20, 3)], SHAPE)
    twin.table.admit([spec(2, 4, 3)])
    errors = {update.row_id: update.error for update in finish(twin) if update.error is not None}
    assert errors == dict.fromkeys([0, 1], "the engine failed on this request (MemoryError)")


def test_rows_taken_out_of_the_batch_are_reported(make: Make) -> None:
    twin = make(40, 4, 0)
    twin.table.admit([spec(0, 8, 20), spec(1, 8, 20)])
    swapped_out: list[RowId] = []
    while not twin.table.idle:
        turns(twin)
        swapped_out += twin.table.swapped_out
    assert swapped_out == [1]


def test_a_row_for_which_host_memory_is_too_small_is_handed_back_to_be_read_again(make: Make) -> None:
    twin = make(40, 4, 0, host_bytes=0)
    specs = [spec(0, 8, 20), spec(1, 8, 20)]
    twin.table.admit(specs)
    while not (handed_back := twin.table.take_handed_back()):
        turns(twin)
    assert handed_back == (HandedBack((1,), Cause.OVERFLOW, dropped=(1,)),)
    assert len(ends_of(finish(twin, specs[1:]))) == 2


def refuse(asked: object) -> NoReturn:
    raise OutOfMemoryError("injected")


def test_a_shortage_in_a_step_takes_rows_out_and_memory(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = make(100, 4, 0)
    twin.table.admit([spec(0, 8, 6), spec(1, 8, 6)])
    updates = turns(twin, 2)
    with monkeypatch.context() as patch:
        patch.setattr(twin.device, "step", refuse)
        assert turns(twin) == [] and play.running(twin) == []
    assert twin.device.batch.capacity_tokens == 90
    assert play.lengths_of(updates + finish(twin)) == {0: 6, 1: 6}


def test_a_shortage_in_prefill_halves_the_group(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = make(100, 4, 0)
    twin.table.admit([spec(row_id, 5, 2) for row_id in range(4)])
    with monkeypatch.context() as patch:
        patch.setattr(twin.device, "launch_chunk", refuse)
        turns(twin)
    updates = turns(twin)
    assert [update.row_id for update in updates] == [0, 1]
    assert play.lengths_of(updates + finish(twin)) == dict.fromkeys(range(4), 2)
    assert twin.device.batch.capacity_tokens == 100


def test_a_row_that_is_admitted_again_has_its_new_priority(make: Make) -> None:
    twin = make(100, 1, 0)
    first, second, again = (replace(spec(row_id, 5, 9), priority=rank) for row_id, rank in ((0, 1), (1, 1), (0, 0)))
    twin.table.admit([first])
    turns(twin, 2)
    twin.table.pause([0])
    assert twin.table.take_handed_back() == (HandedBack((0,), Cause.PAUSE),)
    twin.table.admit([second])
    assert [*ends_of(finish(twin, [again]))] == [0, 1]


def test_rows_decode_while_a_chunk_of_prefill_is_under_way(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CUDA device, whose prefill has a stream of its own."""
    twin = make(200, 4, 0)
    twin.table.admit([spec(0, 5, 20)])
    updates = turns(twin, 2)
    twin.table.admit([spec(1, 5, 3)])
    begun: list[tuple[RowId, ...]] = []
    with monkeypatch.context() as patch:
        patch.setattr(twin.device, "chunk_done", lambda: False)
        for _ in range(3):
            updates += turns(twin)
            assert (play.running(twin), twin.table.tally.generated) == ([0], 1)
            begun.append(twin.table.begun)
    assert begun == [(1,), (), ()]
    updates += turns(twin)
    assert updates[-1].row_id == 1
    assert play.lengths_of(updates + finish(twin)) == {0: 20, 1: 3}


@pytest.mark.parametrize("chunk_done", [True, False], ids=["in turn", "on a stream of its own"])
def test_rows_wait_while_prompts_are_read(make: Make, monkeypatch: pytest.MonkeyPatch, chunk_done: bool) -> None:
    """Rows 1 and 2 came together; each is read alone, so that nothing is padded, and row 0 gets no token meanwhile."""
    twin = make(400, 4, 0)
    monkeypatch.setattr(twin.device, "chunk_done", lambda: chunk_done)
    twin.table.admit([spec(0, 5, 6)], BLOCKING)
    assert play.lengths_of(turns(twin)) == {0: 1}
    assert play.lengths_of(turns(twin)) in ({}, {0: 1}) and play.running(twin) == [0]
    twin.table.admit([spec(1, 9, 3), spec(2, 5, 3)], BLOCKING)
    pad, steps = 0, []
    for _ in range(3):
        updates = turns(twin)
        pad += twin.table.tally.pad
        steps.append((sorted(play.lengths_of(updates)), twin.table.tally.generated, play.running(twin)))
    assert steps[:2] == [([1], 1, [0]), ([2], 1, [0])]
    assert steps[2][1:] == (3, [0, 1, 2]) and pad == 0
    assert ends_of(finish(twin)).keys() == {0, 1, 2}
