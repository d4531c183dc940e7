"""Places in the queue, and why a request waits. Background requests do not count."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from math import inf

from scheduler.request import Request, State
from scheduler.waiting.queue import RankedQueue
from scheduler.waiting.sorted_requests import QueueAhead

FRESH = 0.25  # seconds that counted places are reused

FRONT = 1000  # requests counted; behind them, places are approximate


class Places:
    """Event loop only."""

    def __init__(self, queue: RankedQueue) -> None:
        self._queue = queue
        self._places: dict[Request, QueueAhead] = {}  # of the first FRONT
        self._counted = -inf

    def ahead(self, request: Request, now: float) -> QueueAhead | None:
        """None when it does not wait."""
        if request.state is not State.WAITING:
            return None
        if not self._queue.order.by_key:
            if not 0 <= now - self._counted < FRESH:
                self._counted, self._places, ahead = now, {}, QueueAhead()
                for one in islice(self._queue.ranked(now), FRONT):
                    self._places[one] = ahead
                    ahead = ahead.and_one(one)
            if request in self._places:
                return self._places[request]
        return self._queue.ahead(request, now)


class Reason(StrEnum):
    PRIORITY = "better_priority"
    ARRIVAL = "came_earlier"
    RULE = "put_first"  # later, but put first by the order or its deadline


@dataclass(frozen=True, slots=True)
class Explanation:
    strategy: str
    count: int  # approximate beyond `ahead`
    ahead: Sequence[Request]  # next to start first; the front only
    reasons: Counter[Reason]
    # seconds at full load in which newcomers without priority or deadline may pass; 0 for none, None if unbounded
    passed_for: float | None


def find_reason(ahead: Request, request: Request) -> Reason:
    if ahead.priority < request.priority:
        return Reason.PRIORITY
    earlier = (ahead.times.arrival, ahead.row_id) < (request.times.arrival, request.row_id)
    return Reason.ARRIVAL if earlier else Reason.RULE
