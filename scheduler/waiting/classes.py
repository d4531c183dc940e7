"""A waiting queue in which cheap requests go first, but none waits much longer than first come, first served.

Requests fall into classes of predicted work (prices.py), each twice the one before. The cheapest class goes first, in
it first come, first served. To age requests without a clock, and at whatever speed the device works, waiting is counted
in work too: S, the work of all requests that have been taken from the queue. A request that came at S = s is promised,
and goes before all that are not, first come, first served, once

    S - s  >=  β·max(Q, B)

B is the work that waits now in its class of `priority`, which is how long a request that comes now would wait if none
overtook, whatever the order was so far; Q is the 99th percentile of that over the requests that came last. So all are
promised to begin about as soon as nearly all would have begun, first come, first served. Requests that are due by their
deadline go before all these (due.py).

The bound. Let B* be the most work that waits in a class of `priority` while a request does, or did when one of the
RECENT requests before it came; let w* be the work that one plan takes from the queue at most. Once β·B* has been taken
since it came, it is promised for good. From then on only promised requests are taken; those that came later have later
places, and those that came before it waited when it came: B* at most. So before it no more is taken than

    (1 + β)·B* + w*

unless of better priority or since it was due, however many cheaper requests come. A queue of N requests at most bounds
B* by N times the work of the largest. It is predicted work: the bound is as good as the predictions' sum. A row that
was handed back begins to wait anew.

With a profile, work is seconds of a device that runs as many rows as it can, so with W executors this is about W times
as many seconds as it takes, besides the rest of what runs. Without one it is in the units of prices.py.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from math import frexp

from scheduler.request import Request
from scheduler.waiting.aged import Aging
from scheduler.waiting.due import DueFirst
from scheduler.waiting.prices import Prices
from scheduler.waiting.queue import Key
from scheduler.waiting.ranked import RankedQueue
from scheduler.waiting.running_quantile import RunningQuantile
from scheduler.worker import Worker

RECENT = 1024
"""Requests that came last."""

NEARLY_ALL = 0.99

CLASSES_SHARE = 0.8
"""β."""


@dataclass(eq=False, slots=True)
class _Entry:
    """A waiting request and the numbers that rank it."""

    request: Request
    place: float
    """s: the work that had been taken from the queue when it came."""
    work: float
    """Work that it has still to do, as of its latest prediction."""
    promised: bool = False


@dataclass(eq=False, slots=True)
class _Waiting:
    """The requests of one `priority` that wait."""

    work: float = 0.0
    """B: their work."""
    by_place: deque[_Entry] = field(default_factory=deque)
    """Entries that are not promised, the first come first; some of them have left."""


class ClassQueue(Collection[Request]):
    """A Queue: requests that are due first, then the promised ones, then the cheapest class. It is its own Order."""

    def __init__(self, prices: Prices, share: float, aging: Aging) -> None:
        if share < 0:
            raise ValueError(f"the share of work that may overtake a request must not be negative: {share}")
        self._prices = prices
        self._share = share  # β
        self._entries: dict[Request, _Entry] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._ranked = RankedQueue(DueFirst(self, aging))
        self._taken = 0.0  # S
        self._waits = RunningQuantile(RECENT)  # B, when each request came
        self._usual_wait = 0.0  # Q

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request: object) -> bool:
        return request in self._entries

    def __iter__(self) -> Iterator[Request]:
        return iter(self._entries)

    @property
    def best_priority(self) -> int:
        return self._ranked.best_priority

    def key(self, request: Request, now: float) -> Key:
        entry = self._entries[request]
        work_class = 0 if entry.promised else frexp(entry.work)[1]
        return (request.priority, not entry.promised, work_class, entry.place, request.times.arrival, request.row_id)

    def changes_at(self, request: Request) -> tuple[float, ...]:
        return ()

    def ranked(self, now: float) -> Iterator[Request]:
        for waiting in self._waiting.values():
            self._promise(waiting)
        return self._ranked.ranked(now)

    def first(self, worker: Worker, now: float, count: int) -> Sequence[Request]:
        return list(itertools.islice(self.ranked(now), count))

    def add(self, request: Request) -> None:
        waiting = self._waiting.setdefault(request.priority, _Waiting())
        if not request.runs:  # else it was handed back, and was counted when it came
            self._waits.add(waiting.work)
            self._usual_wait = self._waits.quantile(NEARLY_ALL)
        self._entries[request] = entry = _Entry(request, self._taken, self._prices.work(request))
        waiting.work += entry.work
        waiting.by_place.append(entry)
        self._ranked.add(request)

    def revise(self, request: Request) -> None:
        """Rank a request by its new prediction, at the place that it has."""
        entry = self._entries.get(request)
        if entry is not None:
            work = self._prices.work(request)
            self._waiting[request.priority].work += work - entry.work
            entry.work = work
            self._ranked.revise(request)

    def discard(self, request: Request) -> bool:
        entry = self._entries.pop(request, None)
        if entry is None:
            return False
        self._ranked.discard(request)
        self._waiting[request.priority].work -= entry.work
        if not self._entries:  # so that no rounding error stays for ever
            self._waiting.clear()
        return True

    def serve(self, request: Request) -> None:
        self._taken += self._entries[request].work
        self.discard(request)

    def _promise(self, waiting: _Waiting) -> None:
        """Promise requests what has been taken since they came."""
        limit = self._taken - self._share * max(self._usual_wait, waiting.work)
        while waiting.by_place and waiting.by_place[0].place <= limit:
            entry = waiting.by_place.popleft()
            if self._entries.get(entry.request) is entry:
                entry.promised = True
                self._ranked.revise(entry.request)
