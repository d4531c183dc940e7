"""The waiting queue: requests that no executor holds, ranked by an order. Knows no executor and no batch."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Collection, Iterator
from math import inf

from engine.messages import RowId
from scheduler.request import Request
from scheduler.waiting.order import STEADY, Order, Turning, turns_of


class RankedQueue(Collection[Request]):
    """Requests that wait. Iterating gives them best first, as ranked by the latest `rank`.

    A queue of thousands is not sorted anew each time where the order tells when keys change: such a queue is sorted
    at all times, as of the latest rank, and only requests whose turn has come are put elsewhere.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._steady = order in STEADY or isinstance(order, Turning)  # whether it is sorted at all times
        self._requests: list[Request] = []
        self._ranked = -inf  # the time of the latest rank
        self._stale = False  # whether requests have come since, in a queue that is not sorted at all times
        self._turns: list[tuple[float, RowId]] = []  # a heap; those of requests that have left are still there
        self._turning: dict[RowId, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __contains__(self, request: object) -> bool:
        return request in self._requests

    def add(self, request: Request) -> None:
        """Put a request in; the next `rank` finds its place at the latest."""
        if not self._steady:
            self._requests.append(request)
            self._stale = True
            return
        self._insert(request)
        self._turning[request.row_id] = request
        for turn in turns_of(self._order, request) or ():
            if turn > self._ranked:
                heapq.heappush(self._turns, (turn, request.row_id))

    def discard(self, request: Request) -> bool:
        """Take a request out; False when it was not here."""
        try:
            self._requests.remove(request)
        except ValueError:
            return False
        self._turning.pop(request.row_id, None)
        return True

    def revise(self, request: Request) -> None:
        """The order may see a request otherwise than before; nothing happens when it is not here."""
        if self.discard(request):
            self.add(request)

    def rank(self, now: float) -> None:
        """Sort by the order's keys at time `now`, which never goes back. Cheap when little changed."""
        if self._steady:
            turned = list(self._pop_turned(now))
            for request in turned:
                self._requests.remove(request)
            self._ranked = now
            for request in turned:
                self._insert(request)
        elif self._stale or self._ranked != now:
            self._requests.sort(key=lambda request: self._order(request, now))
            self._ranked, self._stale = now, False

    def position(self, request: Request) -> int | None:
        """How many requests are ahead; None when it is not waiting."""
        return self._requests.index(request) if request in self._requests else None

    def _insert(self, request: Request) -> None:
        bisect.insort(self._requests, request, key=lambda other: self._order(other, self._ranked))

    def _pop_turned(self, now: float) -> Iterator[Request]:
        """Each request once whose key may have changed. One that left and came back may have old turns here too."""
        turned: dict[RowId, Request] = {}
        while self._turns and self._turns[0][0] <= now:
            _, row_id = heapq.heappop(self._turns)
            if row_id in self._turning:
                turned[row_id] = self._turning[row_id]
        yield from turned.values()
