"""Rules of a row's way through a device, on the engine and on the simulator: they must be the same."""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import NoReturn

import pytest

from engine.device import OutOfMemoryError
from engine.messages import BatchPolicy, Cause, Entry, HandedBack, RowId, RowSpec, RowUpdate
from tests.engine.rows import spec
from tests.engine.twins import AnyTwin, MakeTwin, engine_twin, simulated_twin
from tests.tiny import Net

CLOSED = BatchPolicy(closed=True)
SHAPE = BatchPolicy(entry=Entry.SHAPE)
BLOCKING = BatchPolicy(entry=Entry.EMBED_BLOCKING)


@pytest.fixture(params=["engine", "simulated"])
def make(request: pytest.FixtureRequest, net: Net) -> MakeTwin:
    return partial(engine_twin, *net) if request.param == "engine" else simulated_twin


def test_a_closed_batch_that_fills_the_device_runs_whole(make: MakeTwin) -> None:
    """It was measured to fit by its scheduler, so its rows need no columns to spare."""
    twin = make(4 * 28, 4, 32)
    twin.admit([spec(row_id, 20, max_tokens=30) for row_id in range(4)], replace(CLOSED, iterations=8))
    steps = []
    while not (handed_back := twin.handed_back):
        twin.step()
        steps.append(twin.running)
    assert steps == [[], *[[0, 1, 2, 3]] * 7, []]
    assert [one.row_ids for one in handed_back] == [(0, 1, 2, 3)]


@pytest.mark.parametrize("terms", [CLOSED, BatchPolicy(), SHAPE], ids=["closed", "open", "by shape"])
def test_nobody_joins_a_closed_batch_and_open_rows_are_read_meanwhile(make: MakeTwin, terms: BatchPolicy) -> None:
    twin = make(400, 4, 0)
    twin.admit([spec(0, 3, 4)], CLOSED)
    twin.admit([spec(1, 3, 3)], terms)
    begun: list[RowId] = []
    ends: list[RowId] = []
    while not ends:
        assert twin.running in ([], [0])
        ends = [update.row_id for update in twin.step() if update.finish_reason is not None]
        begun += twin.table.begun
    assert (ends, begun) == ([0], [0, 1] if terms == BatchPolicy() else [0])
    assert [update.row_id for update in finish(twin) if update.finish_reason is not None] == [1]


def ranked(row_id: RowId, priority: int, length: int, max_tokens: int) -> RowSpec:
    return replace(spec(row_id, length, max_tokens), priority=priority)


def ended(twin: AnyTwin, count: int = 1) -> tuple[list[RowId], list[list[RowId]]]:
    """The next rows to end, and what runs after each step until then."""
    ends: list[RowId] = []
    steps: list[list[RowId]] = []
    while len(ends) < count:
        assert len(steps) < 500, "it makes no progress"
        ends += [update.row_id for update in twin.step() if update.finish_reason is not None]
        steps.append(twin.running)
    return ends, steps


# Rules that once differed


def finish(twin: AnyTwin) -> list[RowUpdate]:
    updates: list[RowUpdate] = []
    for _ in range(500):
        if twin.table.idle:
            return updates
        updates += twin.step()
    raise AssertionError("it makes no progress")


def lengths(updates: list[RowUpdate]) -> dict[RowId, int]:
    """Tokens that each row got."""
    counts: Counter[RowId] = Counter()
    for update in updates:
        counts[update.row_id] += len(update.token_ids)
    return dict(counts)


def test_a_closed_batch_and_a_scored_prompt_are_prefilled_though_rows_enter_by_shape(make: MakeTwin) -> None:
    """There is nothing to enter into before a closed batch runs, and only prefill scores a prompt."""
    twin = make(400, 4, 0)
    twin.admit([spec(0, 5, 3), spec(1, 5, 3)], replace(SHAPE, closed=True))
    twin.admit([spec(2, 5, 3, prompt_logprobs=0)], SHAPE)
    updates = twin.step()
    assert (twin.running, twin.table.shape().staged) == ([], 2)
    updates += twin.step()
    assert twin.running == [0, 1]
    assert lengths(updates + finish(twin)) == dict.fromkeys(range(3), 3)


def test_rows_that_outgrow_the_empty_device_fail_one_by_one_and_alike(make: MakeTwin) -> None:
    twin = make(10, 4, 0)
    twin.admit([spec(0, 20, 3)], BatchPolicy())
    twin.admit([spec(1, 20, 3)], SHAPE)
    twin.admit([spec(2, 4, 3)], BatchPolicy())
    errors = {update.row_id: update.error for update in finish(twin) if update.error is not None}
    assert errors == dict.fromkeys([0, 1], "the engine failed on this request (MemoryError)")


def test_rows_taken_out_of_the_batch_are_reported(make: MakeTwin) -> None:
    twin = make(40, 4, 0)
    twin.admit([spec(0, 8, 20), spec(1, 8, 20)], BatchPolicy())
    swapped_out: list[RowId] = []
    while not twin.table.idle:
        twin.step()
        swapped_out += twin.table.swapped_out
    assert swapped_out == [1]


def test_a_row_for_which_host_memory_is_too_small_is_handed_back_to_be_read_again(make: MakeTwin) -> None:
    twin = make(40, 4, 0, host_bytes=0)
    specs = [spec(0, 8, 20), spec(1, 8, 20)]
    twin.admit(specs, BatchPolicy())
    while not (handed_back := twin.handed_back):
        twin.step()
    assert handed_back == [HandedBack((1,), Cause.OVERFLOW, dropped=(1,))]
    twin.admit(specs[1:], BatchPolicy())
    assert len([update for update in finish(twin) if update.finish_reason]) == 2


def refuse(asked: object) -> NoReturn:
    raise OutOfMemoryError("injected")


def test_a_shortage_in_a_step_takes_rows_out_and_memory(make: MakeTwin, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = make(100, 4, 0)
    twin.admit([spec(0, 8, 6), spec(1, 8, 6)], BatchPolicy())
    updates = twin.step() + twin.step()
    with monkeypatch.context() as patch:
        patch.setattr(twin.device, "step", refuse)
        assert twin.step() == [] and twin.running == []
    assert twin.device.batch.capacity_tokens == 90
    assert lengths(updates + finish(twin)) == {0: 6, 1: 6}


def test_a_shortage_in_prefill_halves_the_group(make: MakeTwin, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = make(100, 4, 0)
    twin.admit([spec(row_id, 5, 2) for row_id in range(4)], BatchPolicy())
    with monkeypatch.context() as patch:
        patch.setattr(twin.device, "launch_chunk", refuse)
        twin.step()
    updates = twin.step()
    assert [update.row_id for update in updates] == [0, 1]
    assert lengths(updates + finish(twin)) == dict.fromkeys(range(4), 2)
    assert twin.device.batch.capacity_tokens == 100


def test_a_row_that_is_admitted_again_has_its_new_priority(make: MakeTwin) -> None:
    twin = make(100, 1, 0)
    twin.admit([ranked(0, 1, 5, 9)], BatchPolicy())
    twin.step()
    twin.step()
    twin.table.pause([0])
    assert twin.handed_back == [HandedBack((0,), Cause.PAUSE)]
    twin.admit([ranked(1, 1, 5, 9)], BatchPolicy())
    twin.admit([ranked(0, 0, 5, 9)], BatchPolicy())
    assert ended(twin, 2)[0] == [0, 1]


def test_rows_decode_while_a_chunk_of_prefill_is_under_way(make: MakeTwin, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CUDA device, whose prefill has a stream of its own."""
    twin = make(200, 4, 0)
    twin.admit([spec(0, 5, 20)], BatchPolicy())
    updates = twin.step() + twin.step()
    twin.admit([spec(1, 5, 3)], BatchPolicy())
    begun: list[tuple[RowId, ...]] = []
    with monkeypatch.context() as patch:
        patch.setattr(twin.device, "chunk_done", lambda: False)
        for _ in range(3):
            updates += twin.step()
            assert (twin.running, twin.table.tally.generated) == ([0], 1)
            begun.append(twin.table.begun)
    assert begun == [(1,), (), ()]
    updates += twin.step()
    assert updates[-1].row_id == 1
    assert lengths(updates + finish(twin)) == {0: 20, 1: 3}


@pytest.mark.parametrize("chunk_done", [True, False], ids=["in turn", "on a stream of its own"])
def test_rows_wait_while_prompts_are_read(make: MakeTwin, monkeypatch: pytest.MonkeyPatch, chunk_done: bool) -> None:
    """Rows 1 and 2 came together; each is read alone, so that nothing is padded, and row 0 gets no token meanwhile."""
    twin = make(400, 4, 0)
    monkeypatch.setattr(twin.device, "chunk_done", lambda: chunk_done)
    twin.admit([spec(0, 5, 6)], BLOCKING)
    assert lengths(twin.step()) == {0: 1}
    assert lengths(twin.step()) in ({}, {0: 1}) and twin.running == [0]
    twin.admit([spec(1, 9, 3), spec(2, 5, 3)], BLOCKING)
    pad, steps = 0, []
    for _ in range(3):
        updates = twin.step()
        pad += twin.table.tally.pad
        steps.append((sorted(lengths(updates)), twin.table.tally.generated, twin.running))
    assert steps[:2] == [([1], 1, [0]), ([2], 1, [0])]
    assert steps[2][1:] == (3, [0, 1, 2]) and pad == 0
    ends = [update.row_id for update in finish(twin) if update.finish_reason is not None]
    assert sorted(ends) == [0, 1, 2]
