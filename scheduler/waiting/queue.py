"""A waiting queue in one order; requests due by their deadlines go first."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Iterator
from math import inf

from scheduler.request import BACKGROUND, Request
from scheduler.waiting.by_length import Aging
from scheduler.waiting.deadlines import due_at
from scheduler.waiting.order import Order
from scheduler.waiting.sorted_requests import Ahead, Key, SortedRequests


class RankedQueue(Collection[Request]):
    """Requests sorted by an order's keys, due ones first within their priority, earliest deadline first.

    Background requests keep their order of arrival. Before it is due, a deadline has no effect. Only requests whose
    key changes move, so thousands may wait.
    """

    def __init__(self, order: Order, aging: Aging = Aging()) -> None:  # noqa: B008 - frozen
        """`aging` tells the seconds of a token, by which requests are due for their deadlines."""
        self.order = order
        self._aging = aging
        self._now = -inf  # time of the present sorting
        self._sorted = SortedRequests()
        self._changes: list[tuple[float, int, Request]] = []  # heap with stale entries
        self._count = itertools.count()  # tie-breaker

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._sorted.keys)

    def __contains__(self, request: object) -> bool:
        return request in self._sorted.keys

    @property
    def best_priority(self) -> float:
        """Lowest `priority` waiting; the queue must not be empty."""
        return self._sorted.keys[next(iter(self._sorted))][0]

    def key(self, request: Request, now: float) -> Key:
        priority, *rest = self.order.key(request, now)
        if request.in_background:
            return (priority, 0, request.times.arrival, request.row_id)
        if request.deadline is not None and now >= due_at(request, self._aging):
            return (priority, 0, request.deadline, request.times.arrival, request.row_id)
        return (priority, 1, *rest)

    def add(self, request: Request) -> None:
        self._sort(max(self._now, request.times.arrival))  # else a late decision moves thousands
        self.order.enter(request)
        self._put(request)

    def _put(self, request: Request) -> None:
        self._insert(request)
        for moment in (due_at(request, self._aging), *self.order.changes_at(request)):
            if self._now < moment < inf:
                heapq.heappush(self._changes, (moment, next(self._count), request))

    def discard(self, request: Request) -> bool:
        """False when it is not here."""
        if not self._sorted.remove(request):
            return False
        self.order.leave(request)
        return True

    def revise(self, request: Request) -> None:
        """Rank again after a new prediction; ignores absent requests."""
        if self._sorted.remove(request):
            self.order.revise(request)
            self._put(request)

    def serve(self, request: Request) -> None:
        self.order.serve(request, next(iter(self._sorted)) is request)
        self.discard(request)

    def ranked(self, now: float) -> Iterable[Request]:
        """Best first. Time never goes back."""
        self._sort(now)
        return self.order.rank(self._sorted, self._sorted.keys, now)

    def ahead(self, request: Request, now: float) -> Ahead:
        """Requests ahead of one that waits here, or would if it came now."""
        self._sort(now)
        by_key = self._sorted.ahead(self._sorted.keys.get(request) or self.key(request, now))
        return self.order.ahead_of_newcomer(request, by_key, now)

    def total(self) -> Ahead:
        """All but background requests."""
        return self._sorted.ahead((BACKGROUND,))

    def passed_by(self, before: Ahead) -> float | None:
        """Work, in generated tokens, of later requests that may pass one with `ahead` before it, better priorities and
        due ones apart; None if unbounded.
        """
        return self.order.passed_by(before)

    def _sort(self, now: float) -> None:
        self._now = now
        while self._changes and self._changes[0][0] <= now:
            request = heapq.heappop(self._changes)[2]
            if self._sorted.remove(request):
                self._insert(request)

    def _insert(self, request: Request) -> None:
        self._sorted.insert(self.key(request, self._now), request)
