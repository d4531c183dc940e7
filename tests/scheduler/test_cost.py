"""Operations that decisions take while thousands wait: function calls are counted, since a test's time tells little."""

import random
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from engine.messages import BatchShape, FinishReason, StepReport
from engine.sampling.params import SamplingParams
from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.dispatcher import Dispatcher
from scheduler.request import Request
from scheduler.strategy import STRATEGIES
from tests.scheduler.fakes import VirtualClock, port, token

SLOTS = 8


class Crowd:
    """One executor with full slots, and so many requests that wait."""

    def __init__(self, strategy: str, count: int) -> None:
        self.rng, self.clock = random.Random(0), VirtualClock()
        limits = BatchLimits(group_tokens=2048, prefill_ahead=0).within(16_384, 2048, SLOTS)
        executor = port(capacity=16_384, rows=SLOTS, context=2048)
        self.dispatcher = Dispatcher(assemble(STRATEGIES[strategy], limits), [executor], self.clock)
        self.requests = [self.submit() for _ in range(count + SLOTS)]
        self.serve()
        self.end_one()

    def submit(self) -> Request:
        self.clock.time += 0.01
        prompt, length = range(self.rng.randint(5, 300)), float(self.rng.randint(2, 800))
        return self.dispatcher.submit(prompt, SamplingParams(max_tokens=1000), predicted_length=length)

    def serve(self) -> None:
        self.dispatcher.dispatch()

    def end_one(self) -> None:
        """A row ends, and another request gets its slot."""
        [worker] = self.dispatcher.workers
        update = token(next(iter(worker.requests)), 1, end=FinishReason.STOP)
        self.clock.time += 0.05
        self.dispatcher.receive(StepReport(0, 1, (update,), BatchShape(capacity_tokens=16_384), 0.05))
        self.dispatcher.dispatch()
        assert worker.rows == SLOTS

    def ask(self) -> None:
        last = self.requests[-1]
        assert self.dispatcher.waits.place(last) is not None
        self.dispatcher.waits.wait(last)
        self.dispatcher.waits.retry_after()


def calls(action: Callable[[], object]) -> int:
    """Function calls, of C too, that an action makes."""
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


LISTED = 24_000  # calls that count the places of the first thousand, which is as far as they are counted


@pytest.mark.parametrize("strategy", ["baton-pd", "lengthwise", "boost", "gittins"])
def test_neither_a_decision_nor_an_expected_wait_costs_more_when_thousands_wait(strategy: str) -> None:
    """An expected wait counted the whole queue anew, four times a second: some 20 calls a request."""
    few, many = Crowd(strategy, 100), Crowd(strategy, 5000)
    for action in ("submit", "end_one", "serve", "ask"):
        more = LISTED if action == "ask" and strategy == "lengthwise" else 800
        assert calls(getattr(many, action)) <= calls(getattr(few, action)) + more, action


@pytest.mark.parametrize(("strategy", "calls_each"), [("ssjf-continuous", 8), ("hrrn", 60)])
def test_orders_by_the_wait_look_at_each_request_when_all_their_keys_change(strategy: str, calls_each: int) -> None:
    few, many = Crowd(strategy, 100), Crowd(strategy, 5000)
    for action in ("submit", "end_one", "serve", "ask"):
        assert calls(getattr(many, action)) <= calls(getattr(few, action)) + calls_each * 5000, action
