"""A waiting queue in one order, whichever executor asks. It knows no batch."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from math import inf

from scheduler.request import Request
from scheduler.waiting.deadlines import DueFirst
from scheduler.waiting.orders.sjf import Aging
from scheduler.waiting.queue import Order, Queue
from scheduler.waiting.sorted_requests import Ahead, Key, SortedRequests


class RankedQueue(Queue):
    """Requests sorted by key at all times: only those whose key changes are moved, so thousands may wait."""

    def __init__(self, order: Order, aging: Aging = Aging()) -> None:  # noqa: B008 - frozen
        """`aging` tells the seconds of a token, by which requests are due for their deadlines."""
        self._order = order
        self._due_first = DueFirst(order, aging)
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

    @property
    def exact(self) -> bool:
        return self._order.by_key

    def add(self, request: Request) -> None:
        self._sort(max(self._now, request.times.arrival))  # else a decision that comes late moves thousands
        self._order.enter(request)
        self._insert(request)
        for moment in self._due_first.changes_at(request):
            if moment > self._now:
                heapq.heappush(self._changes, (moment, next(self._count), request))

    def discard(self, request: Request) -> bool:
        if not self._remove(request):
            return False
        self._order.leave(request)
        return True

    def revise(self, request: Request) -> None:
        if self.discard(request):
            self.add(request)

    def serve(self, request: Request) -> None:
        self._order.serve(request, next(iter(self._sorted)) is request)
        self.discard(request)

    def ranked(self, now: float) -> Iterable[Request]:
        self._sort(now)
        return self._order.rank(self._sorted, self._keys, now)

    def ahead(self, request: Request, now: float) -> Ahead:
        self._sort(now)
        by_key = self._sorted.ahead(self._keys.get(request) or self._due_first.key(request, now))
        return self._order.ahead_of_newcomer(request, by_key)

    def total(self) -> Ahead:
        return self._sorted.total()

    def passed_by(self, request: Request, before: Ahead) -> float | None:
        return self._order.passed_by(before)

    def _sort(self, now: float) -> None:
        self._now = now
        while self._changes and self._changes[0][0] <= now:
            request = heapq.heappop(self._changes)[2]
            if self._remove(request):
                self._insert(request)

    def _remove(self, request: Request) -> bool:
        key = self._keys.pop(request, None)
        if key is None:
            return False
        self._sorted.remove(key)
        return True

    def _insert(self, request: Request) -> None:
        self._keys[request] = key = self._due_first.key(request, self._now)
        self._sorted.insert(key, request)
