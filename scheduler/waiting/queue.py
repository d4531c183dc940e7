"""A sorted waiting queue, due requests first."""

import heapq
import itertools
from collections.abc import Collection, Iterable, Iterator
from math import inf

from scheduler.request import BACKGROUND, Request
from scheduler.waiting.by_length import Aging
from scheduler.waiting.deadlines import due_at
from scheduler.waiting.order import Order
from scheduler.waiting.sorted_requests import Key, QueueAhead, SortedRequests


class RankedQueue(Collection[Request]):
    """By key, earliest due first within a priority, background by arrival; only changed keys move."""

    def __init__(self, order: Order, aging: Aging = Aging()) -> None:  # noqa: B008 - frozen
        """`aging`: seconds of a token."""
        self.order = order
        self._aging = aging
        self._now = -inf
        self._sorted = SortedRequests()
        self._changes: list[tuple[float, int, Request]] = []  # lazy heap
        self._count = itertools.count()  # ties

    def __len__(self) -> int:
        return len(self._sorted.keys)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._sorted.keys)

    def __contains__(self, request: object) -> bool:
        return request in self._sorted.keys

    @property
    def best_priority(self) -> float:
        """Not empty."""
        return self._sorted.keys[next(iter(self._sorted))][0]

    def key(self, request: Request, now: float) -> Key:
        priority, *rest = self.order.key(request, now)
        if request.in_background:
            return (priority, 0, request.times.arrival, request.row_id)
        if request.deadline is not None and now >= due_at(request, self._aging):
            return (priority, 0, request.deadline, request.times.arrival, request.row_id)
        return (priority, 1, *rest)

    def add(self, request: Request) -> None:
        self._sort(max(self._now, request.times.arrival))
        self.order.enter(request)
        self._put(request)

    def _put(self, request: Request) -> None:
        self._sorted.insert(self.key(request, self._now), request)
        for moment in (due_at(request, self._aging), *self.order.changes_at(request)):
            if self._now < moment < inf:
                heapq.heappush(self._changes, (moment, next(self._count), request))

    def discard(self, request: Request) -> bool:
        if not self._sorted.remove(request):
            return False
        self.order.leave(request)
        return True

    def revise(self, request: Request) -> None:
        if self._sorted.remove(request):
            self.order.revise(request)
            self._put(request)

    def serve(self, request: Request) -> None:
        first = next(iter(self._sorted))
        if first is not request and self.order.lends(first, request):
            self._sorted.remove(first)
            first.times.arrival, request.times.arrival = request.times.arrival, first.times.arrival
            self._sorted.insert(self.key(first, self._now), first)
        self.order.serve(request, first is request)
        self.discard(request)

    def ranked(self, now: float) -> Iterable[Request]:
        """Time never goes back."""
        self._sort(now)
        return self.order.rank(self._sorted, self._sorted.keys, now)

    def ahead(self, request: Request, now: float) -> QueueAhead:
        self._sort(now)
        by_key = self._sorted.ahead(self._sorted.keys.get(request) or self.key(request, now))
        return self.order.ahead_of_newcomer(request, by_key, now)

    def total(self) -> QueueAhead:
        """Without background."""
        return self._sorted.ahead((BACKGROUND,))

    def _sort(self, now: float) -> None:
        self._now = now
        while self._changes and self._changes[0][0] <= now:
            request = heapq.heappop(self._changes)[2]
            if self._sorted.remove(request):
                self._sorted.insert(self.key(request, now), request)
