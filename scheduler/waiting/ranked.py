"""A waiting queue in one order, whichever executor asks. It knows no batch."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Collection, Iterator, Sequence
from math import inf
from operator import itemgetter

from scheduler.request import Request
from scheduler.waiting.queue import Key, Order
from scheduler.worker import Worker

_KEY = itemgetter(0)


class RankedQueue(Collection[Request]):
    """A Queue that is sorted at all times: only requests whose key changes are moved, so thousands may wait."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._now = -inf  # the moment as of which it is sorted
        self._keys: dict[Request, Key] = {}
        self._sorted: list[tuple[Key, Request]] = []
        self._changes: list[tuple[float, int, Request]] = []  # a heap; requests that have left may still be in it
        self._count = itertools.count()  # tells entries of one moment apart

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._keys)

    def __contains__(self, request: object) -> bool:
        return request in self._keys

    @property
    def best_priority(self) -> int:
        return self._sorted[0][1].priority

    def add(self, request: Request) -> None:
        self._insert(request)
        for moment in self._order.changes_at(request):
            if moment > self._now:
                heapq.heappush(self._changes, (moment, next(self._count), request))

    def discard(self, request: Request) -> bool:
        key = self._keys.pop(request, None)
        if key is None:
            return False
        del self._sorted[bisect.bisect_left(self._sorted, key, key=_KEY)]
        return True

    def revise(self, request: Request) -> None:
        if self.discard(request):
            self.add(request)

    def serve(self, request: Request) -> None:
        self.discard(request)

    def ranked(self, now: float) -> Iterator[Request]:
        self._now = now
        while self._changes and self._changes[0][0] <= now:
            request = heapq.heappop(self._changes)[2]
            if self.discard(request):
                self._insert(request)
        return (request for _, request in self._sorted)

    def first(self, worker: Worker, now: float, count: int) -> Sequence[Request]:
        return list(itertools.islice(self.ranked(now), count))

    def _insert(self, request: Request) -> None:
        self._keys[request] = key = self._order.key(request, self._now)
        bisect.insort(self._sorted, (key, request), key=_KEY)
