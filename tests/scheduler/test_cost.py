"""Operations that decisions take while thousands wait: function calls are counted, since a test's time tells little."""

import random
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from engine.messages import FinishReason
from scheduler.batching.batcher import BatchLimits
from scheduler.request import Request
from tests.scheduler.fakes import Stage, port, token

SLOTS = 8


class Crowd(Stage):
    """One executor with full slots, and so many requests that wait."""

    def __init__(self, strategy: str, count: int) -> None:
        self.rng = random.Random(0)
        limits = BatchLimits(group_tokens=2048, prefill_ahead=0).within(16_384, 2048, SLOTS)
        super().__init__(port(capacity=16_384, rows=SLOTS, context=2048), strategy=strategy, limits=limits)
        self.requests = [self.come() for _ in range(count + SLOTS)]
        self.dispatch()
        self.end_one()

    def come(self) -> Request:
        self.clock.time += 0.01
        return self.submit(self.rng.randint(5, 300), most=1000, predicted_length=float(self.rng.randint(2, 800)))

    def end_one(self) -> None:
        """A row ends, and another request gets its slot."""
        [worker] = self.dispatcher.workers
        self.report(token(next(iter(worker.requests)), 1, end=FinishReason.STOP), now=self.clock.time + 0.05)
        self.dispatch()
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


EACH = {"ssjf-continuous": 8, "hrrn": 60}
"""Calls a request of orders by the wait, where all keys change."""


@pytest.mark.parametrize("strategy", ["baton-pd", "lengthwise", "boost", "gittins", *EACH])
def test_neither_a_decision_nor_an_expected_wait_costs_more_when_thousands_wait(strategy: str) -> None:
    """An expected wait counted the whole queue anew, four times a second: some 20 calls a request."""
    few, many = Crowd(strategy, 100), Crowd(strategy, 5000)
    for action in ("come", "end_one", "dispatch", "ask"):
        more = LISTED if action == "ask" and strategy == "lengthwise" else EACH.get(strategy, 0) * 5000 or 800
        assert calls(getattr(many, action)) <= calls(getattr(few, action)) + more, action
