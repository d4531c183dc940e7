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
from math import inf

from scheduler.request import Request, State
from scheduler.waiting.queue import RankedQueue
from scheduler.waiting.sorted_requests import Ahead

FRESH = 0.25
"""Seconds for which places are used that had to be counted, since thousands of requests may ask."""

FRONT = 1000
"""Requests whose places in a queue are counted; of those behind them the queue tells about where they are."""


class Places:
    """The places in a queue. Event loop only."""

    def __init__(self, queue: RankedQueue) -> None:
        self._queue = queue
        self._places: dict[Request, Ahead] = {}  # of the first FRONT
        self._counted = -inf  # when they were

    def ahead(self, request: Request, now: float) -> Ahead | None:
        """The requests that are ahead of one; None when it does not wait."""
        if request.state is not State.WAITING:
            return None
        if not self._queue.order.by_key:
            self._count(now)
            if request in self._places:  # else it is behind, or has come since
                return self._places[request]
        return self._queue.ahead(request, now)

    def _count(self, now: float) -> None:
        """Count what is ahead of each request at the front, since the queue does not know."""
        if 0 <= now - self._counted < FRESH:
            return
        self._counted, self._places, ahead = now, {}, Ahead()
        for request in islice(self._queue.ranked(now), FRONT):
            self._places[request] = ahead
            ahead = ahead.and_one(request)


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
