"""Deadlines: refused when they cannot be met, ended when they pass in the queue, and else left alone."""

import asyncio

import pytest

from engine.messages import Cause, FinishReason
from engine.sampling.params import SamplingParams
from scheduler.request import Failure, Request, State, TooLate
from scheduler.submission import Known
from scheduler.wait_estimate.calibration import FEWEST_SCORES, Score
from tests.scheduler.fakes import Stage, port, token


class OneSlot(Stage):
    """An executor with one row, which makes a token a second."""

    def __init__(self) -> None:
        super().__init__(port(rows=1))

    def ask(self, predicted: float, deadline: float | None = None) -> Request:
        return self.submit(most=100, deadline=deadline, predicted_length=predicted)

    def busy(self) -> Request:
        """A request that has run for 30 seconds and has 9 more to go."""
        running = self.ask(39)
        self.dispatcher.dispatch()
        for second in range(1, 31):
            self.report(token(running.row_id, 5), now=float(second))
        return running


def test_a_deadline_that_what_runs_and_waits_leaves_no_time_for_is_refused_at_once() -> None:
    stage = OneSlot()
    stage.busy()
    with pytest.raises(TooLate):
        stage.ask(1, deadline=stage.clock.time)
    stage.ask(20)
    stage.dispatcher.dispatch()
    # At 30 s: 9 s for the one that runs, 20 s for the one that waits, 5 s of its own.
    with pytest.raises(TooLate, match="too much waits before it"):
        stage.ask(5, deadline=63.0)
    assert stage.dispatcher.table.requests_waiting == 1
    assert stage.ask(5, deadline=65.0).state is State.WAITING


def test_a_deadline_is_held_against_the_end_that_is_told() -> None:
    """Answers had come later than expected: what is told knew it, and deadlines were taken that it said would pass."""
    stage = OneSlot()
    stage.busy()
    for _ in range(FEWEST_SCORES):
        stage.dispatcher.waits._calibration._scores[None].add(Score(1.0))
    calls = [((1,) * 4, SamplingParams(100), Known(predicted_length=5.0))]
    told = stage.dispatcher.admission.estimate_all(calls)[0].expected
    assert told is not None and told.median > told.point + 1.0
    with pytest.raises(TooLate):
        stage.ask(5, deadline=told.at + told.median - 0.1)
    assert stage.ask(5, deadline=told.at + told.median + 0.1).state is State.WAITING


def test_a_server_with_nothing_to_do_tries() -> None:
    """Whatever it knows was measured under load; if it refused by that, it would never learn otherwise."""
    stage = OneSlot()
    stage.dispatcher.cancel(stage.busy())
    stage.dispatcher.dispatch()
    assert stage.ask(5, deadline=stage.clock.time + 1.0).state is State.WAITING


@pytest.mark.parametrize("deadline", [4.9, 5.0, 5.1])
def test_a_deadline_has_one_end_whether_it_passes_before_the_queue_or_in_it(deadline: float) -> None:
    """An idle server refused some of these as if others were in the way, as its own work took a little more or less."""
    stage = OneSlot()
    stage.clock.time = 5.0
    late = stage.ask(1, deadline=deadline)
    stage.clock.time = 5.2
    stage.dispatcher.dispatch()
    assert (late.state, late.failure) == (State.FAILED, Failure.DEADLINE)


async def test_a_request_whose_deadline_passes_in_the_queue_ends_with_an_error() -> None:
    stage = OneSlot()
    late = [stage.ask(5, deadline=3.0 + place) for place in range(3)]
    running = asyncio.create_task(stage.dispatcher.run())
    async with asyncio.timeout(20):
        updates = [update async for update in late[2].stream]
    assert stage.clock.time == 5.0
    told = [(one.finish_reason, one.error) for one in updates]
    assert told == [(FinishReason.ERROR, "the deadline passed while the request waited")]
    passed = (State.FAILED, Failure.DEADLINE)
    assert [(one.state, one.failure) for one in late] == [(State.ASSIGNED, None), passed, passed]
    assert (len(stage.dispatcher.waiting), stage.dispatcher.table.requests_waiting) == (0, 1)
    running.cancel()


@pytest.mark.parametrize(("begun", "state"), [(False, State.FAILED), (True, State.ASSIGNED)])
def test_a_deadline_that_passes_on_an_executor_ends_what_comes_back_without_a_token(begun: bool, state: State) -> None:
    stage = OneSlot()
    one = stage.ask(5, deadline=3.0)
    stage.dispatcher.dispatch()
    if begun:
        stage.report(token(one.row_id, 5), now=1.0)
    stage.clock.time = 4.0
    stage.dispatcher.dispatch()
    assert one.state is (State.RUNNING if begun else State.ASSIGNED) and stage.dispatcher.wake_at() is None
    stage.hand_back(Cause.PAUSE, one.row_id, dropped=(one.row_id,))
    stage.ports[0].take()
    assert stage.dispatch() == ([[one.row_id]] if begun else [])
    assert (one.state, one.failure) == (state, None if begun else Failure.DEADLINE)


def test_a_deadline_that_no_longer_counts_wakes_nobody() -> None:
    stage = OneSlot()
    stage.busy()
    stage.dispatcher.cancel(stage.ask(5, deadline=80.0))
    assert stage.dispatcher.wake_at() is None
    waiting = stage.ask(5, deadline=90.0)
    assert stage.dispatcher.wake_at() == 90.0
    stage.clock.time = 90.0
    assert stage.dispatch() == [[0]]
    assert waiting.state is State.FAILED
