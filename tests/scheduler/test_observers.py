"""Who wants to know how requests and plans end is told, once each, with the figures of a plan."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.messages import Cause, ExecutorDied, FinishReason
from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.plan import Assignment
from scheduler.request import Request, State
from scheduler.strategy import STRATEGIES
from tests.scheduler.fakes import Stage, port, token

LIMITS = BatchLimits(group_tokens=100, prefill_ahead=0)
STOP = FinishReason.STOP


class Pair(Stage):
    """Two requests, of 4 and of 6 tokens, that an executor was sent as one plan, and took up half a second later."""

    def __init__(self, strategy: str) -> None:
        self.told = list[Assignment]()
        parts = replace(assemble(STRATEGIES[strategy], LIMITS), observers=(self,))
        super().__init__(port(rows=2, capacity=5000), parts=parts)
        self.one, self.other = self.submit(4), self.submit(6)
        self.dispatcher.dispatch()
        self.clock.time = 1.0
        self.dispatcher.receive(replace(self.ports[0].report(), seconds=0.5, begun=(0, 1)))

    def on_finish(self, assignment: Assignment, now: float) -> None:
        assert assignment.ended == now
        self.told.append(assignment)

    @property
    def assignment(self) -> Assignment:
        """The only one that anybody was told of."""
        (assignment,) = self.told
        return assignment


@pytest.mark.parametrize("strategy", ["vs", "fcfs-dynamic", "baton-pd"])
def test_a_plan_is_over_with_its_last_row(strategy: str) -> None:
    stage = Pair(strategy)
    stage.report(token(0, 5), token(1, 6, 6), now=2.0)
    stage.report(token(1, 6, end=STOP), now=3.0)
    assert stage.told == []
    stage.report(token(0, 5, end=STOP), now=4.0)
    over = stage.assignment
    assert (over.sent, over.began, over.ended, over.intact) == (0.0, 0.5, 4.0, True)
    assert (over.input_length, over.iterations) == (6, 3)
    stage.dispatcher.cancel(stage.one)
    assert len(stage.told) == 1


def leave_and_end(stage: Pair) -> None:
    """The one leaves, and the other ends."""
    stage.dispatcher.cancel(stage.one)
    stage.report(token(1, 6, end=STOP), now=3.0)


ENDS: list[tuple[FinishReason | None, Callable[[Pair], None], bool]] = [
    (None, leave_and_end, False),
    (STOP, leave_and_end, True),  # nobody is missed who leaves after his row has ended
    (FinishReason.ERROR, leave_and_end, False),
    (STOP, lambda stage: stage.dispatcher.receive(ExecutorDied(0, "fire")), False),
    (STOP, lambda stage: stage.dispatcher.abort_all("the server stops"), False),
]


@pytest.mark.parametrize("strategy", ["vs", "baton-pd"])
@pytest.mark.parametrize(("first", "then", "intact"), ENDS)
def test_intact_plans(strategy: str, first: FinishReason | None, then: Callable[[Pair], None], intact: bool) -> None:
    """Whose rows all ended by themselves."""
    stage = Pair(strategy)
    stage.report(token(0, 5, end=first), token(1, 6), now=2.0)
    then(stage)
    assert stage.assignment.intact is intact


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
    second = stage.told[1]
    assert (second.sent, second.input_length, second.iterations) == (2.0, 7, 1)


class Notes:
    """A RequestObserver."""

    def __init__(self) -> None:
        self.firsts: list[tuple[int, float]] = []
        self.ends: list[tuple[int, State, FinishReason | None, float]] = []

    def on_first_token(self, request: Request, now: float) -> None:
        assert request.times.first_token == now
        self.firsts.append((request.row_id, now))

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        assert request.times.end == now
        self.ends.append((request.row_id, request.state, reason, now))


class Observed(Stage):
    """A dispatcher with two observers."""

    def __init__(self) -> None:
        self.notes, self.others = Notes(), Notes()
        super().__init__(observers=(self.notes, self.others))


def test_every_end_is_told_once_with_its_reason() -> None:
    stage = Observed()
    stopped, cut, broken, left = (stage.submit() for _ in range(4))
    stage.dispatcher.dispatch()
    ends = {stopped: STOP, cut: FinishReason.LENGTH, broken: FinishReason.ERROR}
    stage.report(*(token(one.row_id, 5, end=reason) for one, reason in ends.items()), now=3.0)
    for one in (stopped, left, left):  # as handlers do when they leave
        stage.dispatcher.cancel(one)
    assert stage.notes.ends == [
        (stopped.row_id, State.FINISHED, STOP, 3.0),
        (cut.row_id, State.FINISHED, FinishReason.LENGTH, 3.0),
        (broken.row_id, State.FAILED, FinishReason.ERROR, 3.0),
        (left.row_id, State.CANCELLED, None, 3.0),
    ]
    assert stage.others.ends == stage.notes.ends


def test_each_first_token_is_told_when_it_comes_and_a_failure_with_the_executor() -> None:
    stage = Observed()
    whole, going_on = stage.submit(), stage.submit()
    stage.dispatcher.dispatch()
    stage.report(token(whole.row_id, 5, end=STOP), now=3.0)
    for now in (4.0, 5.0):
        stage.report(token(going_on.row_id, 5), now=now)
    assert stage.notes.firsts == [(whole.row_id, 3.0), (going_on.row_id, 4.0)]
    stage.dispatcher.receive(ExecutorDied(0, "broken"))
    assert stage.notes.ends[1:] == [(going_on.row_id, State.FAILED, FinishReason.ERROR, 5.0)]
