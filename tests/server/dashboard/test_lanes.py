"""Lanes and stages of rows, as an executor's reports tell them."""

from __future__ import annotations

from typing import TypeAlias

from engine.messages import BatchShape, Cause, FinishReason, HandedBack, RowId, RowUpdate, StepReport, StepStats
from scheduler.programs.program import Kind, Program
from scheduler.request import Request, State
from server.dashboard import snapshot
from server.dashboard.lanes import RowTimeline
from server.dashboard.snapshot import Stage
from tests.scheduler.fakes import request, token

END = FinishReason.STOP

Moved: TypeAlias = tuple[float, int, int, Stage]
"""When which lane's row came to which stage."""


Ids: TypeAlias = tuple[RowId, ...]

READ, ONE, TWO = StepStats(prompt=8), StepStats(generated=1), StepStats(prompt=4, generated=2)


class Watched:
    """Lanes, and the requests that their executor holds. A turn takes a second."""

    def __init__(self, *held: Request) -> None:
        self.changes: list[snapshot.Change] = []
        self.lanes = RowTimeline(0, self.changes, held)
        self.requests: dict[RowId, Request] = {one.row_id: one for one in held}
        self.now = 0.0

    @classmethod
    def holding(cls, *row_ids: RowId) -> Watched:
        """Of requests that have not begun."""
        watched = cls()
        watched.requests = {row_id: request(row_id) for row_id in row_ids}
        return watched

    @classmethod
    def decoding(cls, *others: RowId) -> Watched:
        """Rows 1 and 2 have had a token each, and others have not begun."""
        watched = cls.holding(1, 2, *others)
        watched.turn(token(1, 5), token(2, 5), begun=(1, 2), tally=TWO, rows=2)
        return watched

    def turn(
        self, *updates: RowUpdate, begun: Ids = (), out: Ids = (), back: Ids = (), tally: StepStats = ONE, **shape: int
    ) -> list[Moved]:
        """Rows get tokens or begin, are swapped out or handed back; the batch has a row, unless its shape is given."""
        self.now += 1.0
        handed_back = (HandedBack(back, Cause.PAUSE),) if back else ()
        report = StepReport(0, 1, updates, BatchShape(**{"rows": 1} | shape), 1.0, begun, handed_back, tally, out)
        self.lanes.report(report, self.requests, self.now)
        return self.take()

    def take(self) -> list[Moved]:
        """What has changed since the last call."""
        changes = [(one.at, one.lane, one.row, one.stage) for one in self.changes]
        self.changes.clear()
        return changes

    @property
    def stages(self) -> dict[int, tuple[RowId, Stage]]:
        """By lane."""
        return {one.lane: (one.row, one.stage) for one in self.lanes.rows}


def test_a_row_is_read_waits_for_a_slot_and_decodes() -> None:
    watched = Watched.holding(7)
    assert watched.turn(begun=(7,), tally=READ, rows=0) == [(0.0, 0, 7, Stage.PREFILL)]
    first = watched.turn(token(7, 1), tally=StepStats(prompt=8, generated=1), rows=0, staged=1)
    assert first == [(2.0, 0, 7, Stage.STAGED)]
    assert watched.turn(token(7, 1)) == [(2.0, 0, 7, Stage.DECODE)]
    assert watched.turn(token(7, 1)) == []
    assert watched.turn(token(7, 1, end=END), rows=0) == [(5.0, 0, 7, Stage.GONE)]
    assert watched.stages == {}


def test_a_row_that_enters_by_shape_is_in_the_batch_with_its_first_token() -> None:
    watched = Watched.holding(1, 2)
    watched.turn(token(1, 5), begun=(1,), tally=StepStats(prompt=4, generated=1))
    assert watched.stages == {0: (1, Stage.DECODE)}
    watched.turn(token(1, 5), token(2, 5), begun=(2,), tally=TWO, rows=2)
    assert watched.stages == {0: (1, Stage.DECODE), 1: (2, Stage.DECODE)}


def test_lanes_are_used_again_the_lowest_first() -> None:
    watched = Watched.holding(0, 1, 2, 3)
    watched.turn(begun=(0, 1, 2), tally=READ, rows=0)
    watched.turn(back=(1,), tally=READ, rows=0)
    watched.turn(back=(0,), tally=READ, rows=0)
    watched.turn(begun=(3,), tally=READ, rows=0)
    assert watched.stages == {2: (2, Stage.PREFILL), 0: (3, Stage.PREFILL)}


def test_a_programs_turns_share_a_lane_where_it_is_free() -> None:
    watched, run = Watched.holding(0, 1, 2, 3), Program("run", Kind(), 0.0)
    watched.requests[1].program = watched.requests[2].program = watched.requests[3].program = run
    watched.turn(begun=(0, 1), tally=READ)
    watched.turn(back=(0, 1))
    watched.turn(begun=(2, 3), tally=READ)
    assert watched.stages == {0: (3, Stage.PREFILL), 1: (2, Stage.PREFILL)}


def test_a_row_that_is_taken_out_is_paused_until_it_has_another_token() -> None:
    watched = Watched.decoding()
    assert watched.turn(token(1, 5), out=(2,), staged=1) == [(1.0, 1, 2, Stage.PAUSED)]
    assert watched.turn(token(1, 5), token(2, 5), rows=2) == [(2.0, 1, 2, Stage.DECODE)]


def test_rows_of_a_closed_batch_are_invalid_from_their_end_to_the_batchs() -> None:
    watched = Watched.decoding()
    assert watched.turn(token(1, 5, end=END), token(2, 5), rows=2) == [(2.0, 0, 1, Stage.GONE)]
    invalid = StepStats(generated=1, invalid=1)
    assert watched.turn(token(2, 5), tally=invalid, rows=2) == [(2.0, 0, 1, Stage.INVALID)]
    assert watched.stages == {0: (1, Stage.INVALID), 1: (2, Stage.DECODE)}
    last = watched.turn(token(2, 5, end=END), tally=invalid, rows=0)
    assert last == [(4.0, 1, 2, Stage.GONE), (4.0, 0, 1, Stage.GONE)]
    assert watched.stages == {}


def test_an_ended_row_without_a_slot_gives_its_lane_back_with_the_next_step() -> None:
    watched = Watched.decoding(3)
    watched.turn(token(1, 5, end=END), token(2, 5))
    assert watched.turn(token(2, 5)) == []
    watched.turn(begun=(3,), tally=READ)
    assert watched.stages == {0: (3, Stage.PREFILL), 1: (2, Stage.DECODE)}


def test_rows_that_nobody_holds_any_more_are_gone() -> None:
    watched = Watched.holding(1, 2)
    watched.turn(begun=(1, 2), tally=READ, rows=0)
    watched.lanes.prune({2}, 4.0)
    assert watched.take() == [(4.0, 0, 1, Stage.GONE)]
    watched.lanes.clear(5.0)
    assert watched.take() == [(5.0, 1, 2, Stage.GONE)]
    assert watched.stages == {}


def test_a_row_that_nobody_knows_is_left_out() -> None:
    watched = Watched()
    assert watched.turn(token(9, 5), begun=(9,), out=(8,), back=(7,)) == []


def test_who_comes_later_sees_what_runs_already() -> None:
    running, begun, sent = request(1), request(2), request(3)
    for one in (running, begun, sent):
        one.move(State.ASSIGNED)
    running.generated = sent.generated = 5
    for one in (running, begun):
        one.move(State.RUNNING)
    assert Watched(running, begun, sent).stages == {0: (1, Stage.DECODE), 1: (2, Stage.PREFILL)}


def test_changes_are_told_to_newcomers_for_five_minutes_and_the_last_of_each_lane_for_longer() -> None:
    watched = Watched.holding(1, 2)
    watched.turn(token(1, 5), begun=(1,), tally=StepStats(prompt=4, generated=1))
    watched.now = 200.0
    watched.turn(token(2, 5), begun=(2,), tally=StepStats(prompt=4, generated=1))
    told = [(one.row, one.stage) for one in watched.lanes.history(400.0)]
    assert told == [(1, Stage.DECODE), (2, Stage.PREFILL), (2, Stage.STAGED), (2, Stage.DECODE)]
    (one,) = (one for one in watched.lanes.history(600.0) if one.row == 2)
    assert (one.input, one.generated, one.predicted, one.own) == (4, 0, None, 1.0)
