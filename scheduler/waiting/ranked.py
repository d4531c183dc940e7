"""A waiting queue in one order, whichever executor asks. It knows no batch."""

from __future__ import annotations

import heapq
import itertools
from abc import abstractmethod
from collections.abc import Collection, Iterator
from math import inf

from scheduler.request import Request
from scheduler.waiting.orders.due import DueFirst
from scheduler.waiting.orders.fcfs import Fcfs
from scheduler.waiting.queue import Key, Order
from scheduler.waiting.sorted_requests import Ahead, SortedRequests


class CountingQueue(Collection[Request]):
    """A queue that knows what is ahead of a request without looking at all."""

    @abstractmethod
    def ahead(self, request: Request, now: float) -> Ahead | None:
        """The requests that are ahead of one that waits here, or that would be if it came now; None if unknown."""

    @abstractmethod
    def total(self) -> Ahead:
        """All requests: what is ahead of one that comes last."""

    def passed_for(self, request: Request) -> float | None:
        """Seconds of one executor for which requests that come from now on may go before one that waits here.

        Those of better priority and those that are due by their deadline are left out. None where there is no bound.
        """
        return None


class RankedQueue(CountingQueue):
    """A Queue that is sorted at all times: only requests whose key changes are moved, so thousands may wait."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._now = -inf  # the moment as of which it is sorted
        self._keys: dict[Request, Key] = {}
        self._sorted = SortedRequests()
        self._changes: list[tuple[float, int, Request]] = []  # a heap; requests that have left may still be in it
        self._count = itertools.count()  # tells entries of one moment apart

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._keys)

    def __contains__(self, request: object) -> bool:
        return request in self._keys

    @property
    def best_priority(self) -> int:
        return next(iter(self._sorted)).priority

    def add(self, request: Request) -> None:
        self.ranked(max(self._now, request.times.arrival))  # else a decision that comes late moves thousands
        self._insert(request)
        for moment in self._order.changes_at(request):
            if moment > self._now:
                heapq.heappush(self._changes, (moment, next(self._count), request))

    def discard(self, request: Request) -> bool:
        return self._remove(request)

    def revise(self, request: Request) -> None:
        if self._remove(request):
            RankedQueue.add(self, request)

    def serve(self, request: Request) -> None:
        self.discard(request)

    def ranked(self, now: float) -> Iterator[Request]:
        self._now = now
        while self._changes and self._changes[0][0] <= now:
            request = heapq.heappop(self._changes)[2]
            if self._remove(request):
                self._insert(request)
        return iter(self._sorted)

    def ahead(self, request: Request, now: float) -> Ahead:
        self.ranked(now)
        return self._sorted.ahead(self._keys.get(request) or self._order.key(request, now))

    def total(self) -> Ahead:
        return self._sorted.total()

    def passed_for(self, request: Request) -> float | None:
        order = self._order.order if isinstance(self._order, DueFirst) else self._order
        return 0.0 if isinstance(order, Fcfs) else None

    def _remove(self, request: Request) -> bool:
        key = self._keys.pop(request, None)
        if key is None:
            return False
        self._sorted.remove(key)
        return True

    def _insert(self, request: Request) -> None:
        self._keys[request] = key = self._order.key(request, self._now)
        self._sorted.insert(key, request)
