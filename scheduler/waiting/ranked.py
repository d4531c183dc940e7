"""A waiting queue in one order, and deadlines: which requests go first lest they miss theirs, which have missed."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Iterator
from math import inf

from engine.messages import RowId
from scheduler.request import BACKGROUND, Request, State
from scheduler.waiting.by_length import Aging
from scheduler.waiting.queue import Ahead, Key, Order, SortedRequests

SLACK = 2.0  # due when this many times its predicted time is left: once to answer, once to wait for a slot


def due_at(request: Request, aging: Aging) -> float:
    """Seconds of the clock; infinity without a deadline."""
    return inf if request.deadline is None else request.deadline - SLACK * aging.seconds(request)


class Deadlines:
    """Only the wait for the first token counts: an answer that has begun goes on."""

    def __init__(self) -> None:
        self._moments: list[tuple[float, RowId, Request]] = []  # heap with stale entries
        self._overdue: list[Request] = []  # missed on an executor, which may hand them back untouched

    def add(self, request: Request) -> None:
        if request.deadline is not None:
            heapq.heappush(self._moments, (request.deadline, request.row_id, request))

    def next(self) -> float | None:
        """Seconds of the clock; None for never."""
        while self._moments and not _is_open(self._moments[0][2]):
            heapq.heappop(self._moments)
        return self._moments[0][0] if self._moments else None

    def passed(self, now: float) -> list[Request]:
        """Waiting requests that missed their deadlines; each is returned once."""
        while (moment := self.next()) is not None and moment <= now:
            self._overdue.append(heapq.heappop(self._moments)[2])
        late = [request for request in self._overdue if request.state is State.WAITING and _is_open(request)]
        self._overdue = [one for one in self._overdue if one.state is not State.WAITING and _is_open(one)]
        return late


def _is_open(request: Request) -> bool:
    return not request.state.is_final and not request.generated


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
