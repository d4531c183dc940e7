"""Who wants to know how requests and plans end is told, once each; and what a request is submitted with."""

import numpy as np

from engine.messages import ExecutorDied, FinishReason
from engine.sampling.params import SamplingParams
from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.dispatcher import Dispatcher
from scheduler.length.prediction import LengthDistribution
from scheduler.plan import Assignment
from scheduler.request import Request, State
from scheduler.strategy import STRATEGIES
from tests.scheduler.fakes import VirtualClock, port, token


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


class Stage:
    """A dispatcher with one executor and an observer."""

    def __init__(self) -> None:
        self.port, self.clock, self.notes, self.others = port(), VirtualClock(), Notes(), Notes()
        parts = assemble(STRATEGIES["baton-pd"], BatchLimits(group_tokens=100, prefill_ahead=0))
        self.dispatcher = Dispatcher(parts, [self.port], self.clock, (self.notes, self.others))

    def submit(self) -> Request:
        return self.dispatcher.submit(range(4), SamplingParams(max_tokens=8))


def test_every_end_is_told_once_with_its_reason() -> None:
    stage = Stage()
    stopped, cut, broken, left = (stage.submit() for _ in range(4))
    stage.dispatcher.dispatch()
    stage.clock.time = 3.0
    stage.dispatcher.receive(
        stage.port.report(
            token(stopped.row_id, 5, end=FinishReason.STOP),
            token(cut.row_id, 5, end=FinishReason.LENGTH),
            token(broken.row_id, end=FinishReason.ERROR),
        )
    )
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
    stage.clock.time = 3.0
    stage.dispatcher.receive(stage.port.report(token(whole.row_id, 5, end=FinishReason.STOP)))
    for stage.clock.time in (4.0, 5.0):
        stage.dispatcher.receive(stage.port.report(token(going_on.row_id, 5)))
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
    one = stage.dispatcher.submit(
        [1], SamplingParams(max_tokens=8), arrival=4.5, predicted_length=7.0, distribution=likely
    )
    assert (one.times.arrival, one.predicted_length, one.distribution) == (4.5, 7.0, likely)
    plain = stage.submit()
    assert (plain.times.arrival, plain.predicted_length, plain.distribution) == (stage.dispatcher.now(), None, None)
    assert np.array_equal(likely.lengths, [7])
