"""The requests ahead of each one that waits: told by a queue that counts, else counted now and then.

Why a request waits: what goes before it and for which reason, and for how long newcomers may still go before it.

Background requests do not count, since whatever comes goes before them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from scheduler.batching.batcher import Batcher
from scheduler.request import Request, State
from scheduler.waiting.queue import Ahead, Queue

FRESH = 0.25
"""Seconds for which places are used that had to be counted, since thousands of requests may ask."""

FRONT = 1000
"""Requests whose places in a queue are counted; of those behind them the queue tells about where they are."""


class Places:
    """The places in a batcher's queue. Event loop only."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._places: dict[Request, Ahead] = {}  # of a batcher that arranges batches
        self._total = Ahead()  # all requests that are in them
        self._counted: float | None = None  # when they were

    def total(self, now: float) -> Ahead:
        """All requests that wait."""
        if isinstance(self._batcher.waiting, Queue):
            return self._batcher.waiting.total()
        self._count(now)
        return self._total

    def before_newcomer(self, request: Request, now: float) -> Ahead:
        """The requests that would be ahead of one that came now; all where the queue does not know."""
        waiting = self._batcher.waiting
        return waiting.ahead(request, now) if isinstance(waiting, Queue) else self.total(now)

    def ahead(self, request: Request, now: float) -> Ahead | None:
        """The requests that are ahead of one; None when it does not wait."""
        if request.state is not State.WAITING:
            return None
        waiting = self._batcher.waiting
        if isinstance(waiting, Queue):
            if not waiting.exact:
                self._count(now)
            known = None if waiting.exact else self._places.get(request)  # None: it is behind, or has come since
            return waiting.ahead(request, now) if known is None else known
        if request not in self._places:
            self._counted = None
        self._count(now)
        return self._places.get(request)

    def _count(self, now: float) -> None:
        """Count what is ahead of each request, where the queue does not know."""
        if self._counted is not None and 0 <= now - self._counted < FRESH:
            return
        self._counted, self._places, self._total = now, {}, Ahead()
        most = FRONT if isinstance(self._batcher.waiting, Queue) else None
        for request in islice(self._batcher.ranked(now), most):
            self._places[request] = self._total
            self._total = self._total.and_one(request)


class Reason(StrEnum):
    """Why one request goes before another."""

    PRIORITY = "better_priority"
    ARRIVAL = "came_earlier"
    RULE = "put_first"
    """The one ahead came later, and the strategy's order or its deadline puts it first."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request waits: the requests before it, and for how long newcomers may still pass it."""

    strategy: str
    count: int
    """How many requests are before it; about as many, where they are more than `ahead` has."""
    ahead: Sequence[Request]
    """The requests before it, the next to start first: the front of the queue at most."""
    reasons: Counter[Reason]
    """How many of these there are of each reason."""
    passed_for: float | None
    """Seconds at full load for which requests that come from now on, of no better priority and not due by a deadline,
    may go before it; 0 where none does, None where the order has no such bound."""


def find_reason(ahead: Request, request: Request) -> Reason:
    """Why a request is ahead of another."""
    if ahead.priority < request.priority:
        return Reason.PRIORITY
    earlier = (ahead.times.arrival, ahead.row_id) < (request.times.arrival, request.row_id)
    return Reason.ARRIVAL if earlier else Reason.RULE
