"""Deadlines: refused when they cannot be met, ended when they pass in the queue, and else left alone."""

import asyncio
from dataclasses import replace

import pytest

from engine.messages import Cause, FinishReason, HandedBack
from engine.sampling.params import SamplingParams
from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.dispatcher import Dispatcher
from scheduler.request import Failure, Request, State, TooLate
from scheduler.strategy import STRATEGIES
from scheduler.wait_estimate.calibration import FEWEST
from tests.scheduler.fakes import VirtualClock, admitted, port, token

PARAMS = SamplingParams(max_tokens=100)


class OneSlot:
    """An executor with one row, which makes a token a second."""

    def __init__(self) -> None:
        self.port = port(rows=1)
        self.clock = VirtualClock()
        limits = BatchLimits(group_tokens=100, prefill_ahead=0)
        self.dispatcher = Dispatcher(assemble(STRATEGIES["baton-pd"], limits), [self.port], self.clock)

    def submit(self, predicted: float, deadline: float | None = None) -> Request:
        return self.dispatcher.submit(range(4), PARAMS, deadline=deadline, predicted_length=predicted)

    def busy(self) -> Request:
        """A request that has run for 30 seconds and has 9 more to go."""
        running = self.submit(39)
        self.dispatcher.dispatch()
        for _ in range(30):
            self.clock.time += 1.0
            self.dispatcher.receive(self.port.report(token(running.row_id, 5)))
        return running


def test_a_deadline_that_what_waits_leaves_no_time_for_is_refused_at_once() -> None:
    stage = OneSlot()
    stage.busy()
    stage.submit(20)
    stage.dispatcher.dispatch()
    # At 30 s: 9 s for the one that runs, 20 s for the one that waits, 5 s of its own.
    with pytest.raises(TooLate, match="too much waits before it"):
        stage.submit(5, deadline=63.0)
    assert stage.dispatcher.table.requests_waiting == 1
    assert stage.submit(5, deadline=65.0).state is State.WAITING


def test_a_deadline_is_held_against_the_end_that_is_told() -> None:
    """Answers had come later than expected: what is told knew it, and deadlines were taken that it said would pass."""
    stage = OneSlot()
    stage.busy()
    stage.dispatcher.waits._calibration._scores[None].extend([(1.0, False)] * FEWEST)
    told = stage.dispatcher.estimate_all([((1,) * 4, PARAMS, {"predicted_length": 5.0})])[0].expected
    assert told is not None and told.median > told.point + 1.0
    with pytest.raises(TooLate):
        stage.submit(5, deadline=told.at + told.median - 0.1)
    assert stage.submit(5, deadline=told.at + told.median + 0.1).state is State.WAITING


def test_a_server_with_nothing_to_do_tries() -> None:
    """Whatever it knows was measured under load; if it refused by that, it would never learn otherwise."""
    stage = OneSlot()
    running = stage.busy()
    stage.dispatcher.cancel(running)
    stage.dispatcher.dispatch()
    assert stage.submit(5, deadline=stage.clock.time + 1.0).state is State.WAITING


def test_a_deadline_that_has_passed_is_refused() -> None:
    stage = OneSlot()
    stage.clock.time = 5.0
    with pytest.raises(TooLate, match="it takes longer by itself, though nothing waits"):
        stage.submit(1, deadline=5.0)


async def test_a_request_whose_deadline_passes_in_the_queue_ends_with_an_error() -> None:
    stage = OneSlot()
    late = [stage.submit(5, deadline=3.0 + place) for place in range(3)]
    running = asyncio.create_task(stage.dispatcher.run())
    async with asyncio.timeout(20):
        updates = [update async for update in late[2].stream]
    assert stage.clock.time == 5.0
    assert [(one.finish_reason, one.error) for one in updates] == [
        (FinishReason.ERROR, "the deadline passed while the request waited")
    ]
    assert [one.state for one in late] == [State.ASSIGNED, State.FAILED, State.FAILED]
    assert [one.failure for one in late] == [None, Failure.DEADLINE, Failure.DEADLINE]
    assert (len(stage.dispatcher.waiting), stage.dispatcher.table.requests_waiting) == (0, 1)
    running.cancel()


def test_an_answer_that_has_begun_goes_on_past_its_deadline() -> None:
    stage = OneSlot()
    one = stage.submit(5, deadline=3.0)
    stage.dispatcher.dispatch()
    stage.clock.time = 1.0
    stage.dispatcher.receive(stage.port.report(token(one.row_id, 5)))
    stage.clock.time = 10.0
    stage.dispatcher.dispatch()
    assert one.state is State.RUNNING and stage.dispatcher.wake_at() is None


def test_a_deadline_that_passes_on_an_executor_counts_when_it_hands_the_request_back() -> None:
    stage = OneSlot()
    one = stage.submit(5, deadline=3.0)
    stage.dispatcher.dispatch()
    stage.clock.time = 4.0
    stage.dispatcher.dispatch()
    assert one.state is State.ASSIGNED and stage.dispatcher.wake_at() is None
    handed_back = HandedBack((one.row_id,), Cause.PAUSE, dropped=(one.row_id,))
    stage.dispatcher.receive(replace(stage.port.report(), handed_back=(handed_back,)))
    stage.port.take()
    stage.dispatcher.dispatch()
    assert (one.state, one.failure) == (State.FAILED, Failure.DEADLINE)
    assert admitted(stage.port.take()) == []


def test_a_deadline_that_no_longer_counts_wakes_nobody() -> None:
    stage = OneSlot()
    stage.busy()
    stage.dispatcher.cancel(stage.submit(5, deadline=80.0))
    assert stage.dispatcher.wake_at() is None
    waiting = stage.submit(5, deadline=90.0)
    assert stage.dispatcher.wake_at() == 90.0
    stage.clock.time = 90.0
    stage.dispatcher.dispatch()
    assert waiting.state is State.FAILED
    assert admitted(stage.port.take()) == [[0]]
