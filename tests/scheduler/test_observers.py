"""Who wants to know how requests and plans end is told, once each; and what a request is submitted with."""

import numpy as np

from engine.messages import ExecutorDied, FinishReason
from scheduler.length.prediction import LengthDistribution
from scheduler.plan import Assignment
from scheduler.request import Request, State
from tests.scheduler import fakes
from tests.scheduler.fakes import token


class Notes:
    """A RequestObserver and a PlanObserver."""

    def __init__(self) -> None:
        self.firsts: list[tuple[int, float]] = []
        self.ends: list[tuple[int, State, FinishReason | None, float]] = []
        self.plans: list[Assignment] = []

    def on_first_token(self, request: Request, now: float) -> None:
        assert request.times.first_token == now
        self.firsts.append((request.row_id, now))

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        assert request.times.end == now
        self.ends.append((request.row_id, request.state, reason, now))

    def on_finish(self, assignment: Assignment, now: float) -> None:
        self.plans.append(assignment)


class Stage(fakes.Stage):
    """A dispatcher with two observers."""

    def __init__(self) -> None:
        self.notes, self.others = Notes(), Notes()
        super().__init__(observers=(self.notes, self.others))


def test_every_end_is_told_once_with_its_reason() -> None:
    stage = Stage()
    stopped, cut, broken, left = (stage.submit() for _ in range(4))
    stage.dispatcher.dispatch()
    ends = {stopped: FinishReason.STOP, cut: FinishReason.LENGTH, broken: FinishReason.ERROR}
    stage.report(*(token(one.row_id, 5, end=reason) for one, reason in ends.items()), now=3.0)
    for one in (stopped, left, left):  # as handlers do when they leave
        stage.dispatcher.cancel(one)
    assert stage.notes.ends == [
        (stopped.row_id, State.FINISHED, FinishReason.STOP, 3.0),
        (cut.row_id, State.FINISHED, FinishReason.LENGTH, 3.0),
        (broken.row_id, State.FAILED, FinishReason.ERROR, 3.0),
        (left.row_id, State.CANCELLED, None, 3.0),
    ]
    assert stage.others.ends == stage.notes.ends


def test_each_first_token_is_told_when_it_comes() -> None:
    stage = Stage()
    whole, going_on = stage.submit(), stage.submit()
    stage.dispatcher.dispatch()
    stage.report(token(whole.row_id, 5, end=FinishReason.STOP), now=3.0)
    for now in (4.0, 5.0):
        stage.report(token(going_on.row_id, 5), now=now)
    assert stage.notes.firsts == [(whole.row_id, 3.0), (going_on.row_id, 4.0)]


def test_requests_that_fail_with_their_executor_are_told() -> None:
    stage = Stage()
    one = stage.submit()
    stage.dispatcher.receive(ExecutorDied(0, "broken"))
    assert stage.notes.ends == [(one.row_id, State.FAILED, FinishReason.ERROR, 0.0)]


def test_a_request_is_submitted_with_its_arrival_and_what_was_foreseen() -> None:
    stage = Stage()
    stage.clock.time = 5.0
    likely = LengthDistribution.certain(7)
    one = stage.submit(1, arrival=4.5, predicted_length=7.0, distribution=likely)
    assert (one.times.arrival, one.predicted_length, one.distribution) == (4.5, 7.0, likely)
    plain = stage.submit()
    assert (plain.times.arrival, plain.predicted_length, plain.distribution) == (stage.dispatcher.now(), None, None)
    assert np.array_equal(likely.lengths, [7])
