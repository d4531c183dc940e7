"""A waiting queue in one order, whichever executor asks, and deadlines: which requests are moved forward since they
would miss theirs, and which have waited past theirs. It knows no batch.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Iterator
from math import inf

from engine.messages import RowId
from scheduler.request import BACKGROUND, Request, State
from scheduler.waiting.by_length import Aging
from scheduler.waiting.queue import Ahead, Key, Order, SortedRequests

SLACK = 2.0
"""A request is due when this many times its predicted time is left until its deadline: once for the answer, and as long
again to wait for a slot."""


def due_at(request: Request, aging: Aging) -> float:
    """When a waiting request becomes due, in seconds of the clock; infinity where it has no deadline."""
    return inf if request.deadline is None else request.deadline - SLACK * aging.seconds(request)


class Deadlines:
    """Watches deadlines. Only the wait for the first token counts: an answer that has begun goes on in any case."""

    def __init__(self) -> None:
        self._moments: list[tuple[float, RowId, Request]] = []  # a heap; those that no longer count are still there
        self._overdue: list[Request] = []  # past their deadline on an executor, which may hand them back untouched

    def add(self, request: Request) -> None:
        """Watch a request's deadline, if it has one."""
        if request.deadline is not None:
            heapq.heappush(self._moments, (request.deadline, request.row_id, request))

    def next(self) -> float | None:
        """When the next deadline passes, in seconds of the clock; None for never."""
        while self._moments and not _is_open(self._moments[0][2]):
            heapq.heappop(self._moments)
        return self._moments[0][0] if self._moments else None

    def passed(self, now: float) -> list[Request]:
        """Waiting requests whose deadline has passed, even if an executor had them then; each is returned once."""
        while (moment := self.next()) is not None and moment <= now:
            self._overdue.append(heapq.heappop(self._moments)[2])
        late = [request for request in self._overdue if request.state is State.WAITING and _is_open(request)]
        self._overdue = [one for one in self._overdue if one.state is not State.WAITING and _is_open(one)]
        return late


def _is_open(request: Request) -> bool:
    return not request.state.is_final and not request.generated


class RankedQueue(Collection[Request]):
    """Requests that wait, in no particular order when iterated; sorted at all times by an order's keys, but requests
    that are due come before all others of their class, the earliest deadline first.

    Background requests keep the order in which they came: their batch has chosen it, and what it began goes on first.

    A request with a deadline is due from the moment at which no more than SLACK times its predicted time is left. Until
    then it has no advantage, so that a far deadline costs the others nothing. One without a deadline is never due.

    Only requests whose key changes are moved, so thousands may wait.
    """

    def __init__(self, order: Order, aging: Aging = Aging()) -> None:  # noqa: B008 - frozen
        """`aging` tells the seconds of a token, by which requests are due for their deadlines."""
        self.order = order
        self._aging = aging
        self._now = -inf  # the moment as of which it is sorted
        self._sorted = SortedRequests()
        self._changes: list[tuple[float, int, Request]] = []  # a heap; requests that have left may still be in it
        self._count = itertools.count()  # tells entries of one moment apart

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._sorted.keys)

    def __contains__(self, request: object) -> bool:
        return request in self._sorted.keys

    @property
    def best_priority(self) -> float:
        """The lowest `priority` of the requests that wait, as the order has it; only asked while there are any."""
        return self._sorted.keys[next(iter(self._sorted))][0]

    def key(self, request: Request, now: float) -> Key:
        """The sorting key of a request at a moment, wherever it is."""
        priority, *rest = self.order.key(request, now)
        if request.in_background:
            return (priority, 0, request.times.arrival, request.row_id)
        if request.deadline is not None and now >= due_at(request, self._aging):
            return (priority, 0, request.deadline, request.times.arrival, request.row_id)
        return (priority, 1, *rest)

    def add(self, request: Request) -> None:
        """Put a request in."""
        self._sort(max(self._now, request.times.arrival))  # else a decision that comes late moves thousands
        self.order.enter(request)
        self._put(request)

    def _put(self, request: Request) -> None:
        """Rank a request that the order knows of, now and when its key changes."""
        self._insert(request)
        for moment in (due_at(request, self._aging), *self.order.changes_at(request)):
            if self._now < moment < inf:
                heapq.heappush(self._changes, (moment, next(self._count), request))

    def discard(self, request: Request) -> bool:
        """Take a request out; False when it is not here."""
        if not self._sorted.remove(request):
            return False
        self.order.leave(request)
        return True

    def revise(self, request: Request) -> None:
        """Rank a request anew, since its prediction has changed; does nothing when it is not here."""
        if self._sorted.remove(request):
            self.order.revise(request)
            self._put(request)

    def serve(self, request: Request) -> None:
        """Take a request out that goes to an executor."""
        self.order.serve(request, next(iter(self._sorted)) is request)
        self.discard(request)

    def ranked(self, now: float) -> Iterable[Request]:
        """All requests, best first. Time never goes back."""
        self._sort(now)
        return self.order.rank(self._sorted, self._sorted.keys, now)

    def ahead(self, request: Request, now: float) -> Ahead:
        """The requests that are ahead of one that waits here, or that would be if it came now."""
        self._sort(now)
        by_key = self._sorted.ahead(self._sorted.keys.get(request) or self.key(request, now))
        return self.order.ahead_of_newcomer(request, by_key, now)

    def total(self) -> Ahead:
        """All requests that are not in the background: what is ahead of one that comes last."""
        return self._sorted.ahead((BACKGROUND,))

    def passed_by(self, before: Ahead) -> float | None:
        """Work of requests that come from now on and may go before one that waits here with so much before it, in
        generated tokens; None where there is no bound. Those of better priority and those that are due are left out."""
        return self.order.passed_by(before)

    def _sort(self, now: float) -> None:
        self._now = now
        while self._changes and self._changes[0][0] <= now:
            request = heapq.heappop(self._changes)[2]
            if self._sorted.remove(request):
                self._insert(request)

    def _insert(self, request: Request) -> None:
        self._sorted.insert(self.key(request, self._now), request)
