"""Figures of a plan when it is over, which observers are told once."""

from dataclasses import dataclass, field, replace

import pytest

from engine.messages import Cause, ExecutorDied, FinishReason
from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.plan import Assignment
from scheduler.strategy import STRATEGIES
from tests.scheduler.fakes import Stage, port, token

LIMITS = BatchLimits(group_tokens=100, prefill_ahead=0)
STOP = FinishReason.STOP


@dataclass
class Watcher:
    """Remembers what it is told."""

    told: list[tuple[Assignment, float]] = field(default_factory=list)

    def on_finish(self, assignment: Assignment, now: float) -> None:
        self.told.append((assignment, now))


class Pair(Stage):
    """Two requests, of 4 and of 6 tokens, that an executor was sent as one plan, and took up half a second later."""

    def __init__(self, strategy: str) -> None:
        self.watcher = Watcher()
        parts = replace(assemble(STRATEGIES[strategy], LIMITS), observers=(self.watcher,))
        super().__init__(port(rows=2, capacity=5000), parts=parts)
        self.one, self.other = self.submit(4), self.submit(6)
        self.dispatcher.dispatch()
        self.clock.time = 1.0
        self.dispatcher.receive(replace(self.ports[0].report(), seconds=0.5, begun=(0, 1)))

    @property
    def assignment(self) -> Assignment:
        """The only one that anybody was told of."""
        ((assignment, now),) = self.watcher.told
        assert assignment.ended == now
        return assignment


@pytest.mark.parametrize("strategy", ["vs", "fcfs-dynamic", "baton-pd"])
def test_a_plan_is_over_with_its_last_row(strategy: str) -> None:
    stage = Pair(strategy)
    stage.report(token(0, 5), token(1, 6, 6), now=2.0)
    stage.report(token(1, 6, end=STOP), now=3.0)
    assert stage.watcher.told == []
    stage.report(token(0, 5, end=STOP), now=4.0)
    over = stage.assignment
    assert (over.sent, over.began, over.ended, over.intact) == (0.0, 0.5, 4.0, True)
    assert (over.input_length, over.iterations) == (6, 3)
    stage.dispatcher.cancel(stage.one)
    assert len(stage.watcher.told) == 1


@pytest.mark.parametrize("strategy", ["vs", "baton-pd"])
def test_a_plan_whose_rows_left_early_did_not_run_as_planned(strategy: str) -> None:
    stage = Pair(strategy)
    stage.report(token(0, 5), token(1, 6), now=2.0)
    stage.dispatcher.cancel(stage.one)
    stage.report(token(1, 6, end=STOP), now=3.0)
    assert not stage.assignment.intact


def test_nobody_is_missed_who_leaves_after_his_row_has_ended() -> None:
    stage = Pair("vs")
    stage.report(token(0, 5, end=STOP), token(1, 6), now=2.0)
    stage.dispatcher.cancel(stage.one)
    stage.report(token(1, 6, end=STOP), now=3.0)
    assert stage.assignment.intact


@pytest.mark.parametrize("strategy", ["vs", "baton-pd"])
def test_a_row_that_fails_spoils_its_plan(strategy: str) -> None:
    stage = Pair(strategy)
    stage.report(token(0, end=FinishReason.ERROR), token(1, 6, end=STOP), now=2.0)
    assert not stage.assignment.intact


@pytest.mark.parametrize(("cause", "intact"), [(Cause.SLICE, True), (Cause.OVERFLOW, False), (Cause.PAUSE, False)])
@pytest.mark.parametrize("strategy", ["vs", "fcfs-dynamic"])
def test_a_slice_ends_as_planned_and_a_shortage_of_memory_does_not(strategy: str, cause: Cause, intact: bool) -> None:
    stage = Pair(strategy)
    stage.report(token(0, 5), token(1, 6, end=STOP), now=2.0)
    stage.hand_back(cause, 0)
    assert (stage.assignment.ended, stage.assignment.iterations, stage.assignment.intact) == (2.0, 1, intact)


def test_the_next_plan_counts_from_where_its_rows_are() -> None:
    stage = Pair("fcfs-dynamic")
    stage.report(token(0, 5, 5, 5), token(1, 6, end=STOP), now=2.0)
    stage.hand_back(Cause.SLICE, 0)
    stage.dispatcher.dispatch()
    stage.report(token(0, 5, end=STOP), now=3.0)
    second, _ = stage.watcher.told[1]
    assert (second.sent, second.input_length, second.iterations) == (2.0, 7, 1)


@pytest.mark.parametrize("strategy", ["vs", "baton-pd"])
def test_a_plan_is_over_when_its_executor_dies(strategy: str) -> None:
    stage = Pair(strategy)
    stage.report(token(0, 5, end=STOP), token(1, 6), now=2.0)
    stage.dispatcher.receive(ExecutorDied(0, "fire"))
    assert not stage.assignment.intact


def test_a_plan_is_over_when_all_is_aborted() -> None:
    stage = Pair("vs")
    stage.report(token(0, 5, end=STOP), token(1, 6), now=2.0)
    stage.dispatcher.abort_all("the server stops")
    assert not stage.assignment.intact
