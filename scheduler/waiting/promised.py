"""A waiting queue in which the cheapest request goes first, but none waits much longer than first come, first served.

Cheap is what takes little of the device's time (prices.py). To age requests without a clock, and at whatever speed the
device works, waiting is counted in work too: S, the work of all requests that have been taken from the queue. A request
that came at S = s is promoted once

    S - s  >=  β·max(Q, B)

B is the work that waits now, which is how long a request that comes now would wait if none overtook, whatever the order
was so far; Q is the 99th percentile of that over the requests that came last. So all are promised to begin about as
soon as nearly all would have begun, first come, first served. Outliers, the most expensive one of ONE_IN, are promised
a later start, and promoted at `outlier_factor` times as much: so few can hold a tenth of all work, which all others
would wait for. Requests that are due by their deadline go first, the earliest deadline first (due.py); then the
promoted in the order in which they came; of the others the cheapest, as far as it is worth a place beside the rows that
run (batching/joining.py).

The bound. Let B* be the most work that waits in a class of `priority` while a request does, or did when one of the
RECENT requests before it came; let w* be the work that one plan takes from the queue at most. Once β·B* has been taken
since it came, it is promoted for good. From then on only promoted requests are taken, those that came later have later
places, and those that came before it waited when it came: B* at most. So before it no more is taken than

    (1 + β)·B* + w*        (1 + β·outlier_factor)·B* + w* before an outlier

unless of better classes or since it was due, however many cheaper requests come. An outlier is one by its latest
prediction. A queue of Q requests at most bounds B* by Q times the work of the largest. It is predicted work: the bound
is as good as the predictions' sum. A row that was handed back begins to wait anew, and waits as long at most again; it
makes way for others once (batching/preemption.py).

With a profile, work is seconds of a device that runs as many rows as it can, so with W executors this is about W times
as many seconds as it takes, besides the rest of what runs. A request that is not worth a place waits for work to be
taken or for rows to end, and an executor without rows is given the first; while few rows run for that reason work takes
longer. Without a profile, work is in the units of prices.py.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from scheduler.batching.joining import worth_joining
from scheduler.options import Scheduling
from scheduler.request import Request
from scheduler.waiting.aged import Aging
from scheduler.waiting.due import due_at
from scheduler.waiting.prices import Prices
from scheduler.waiting.priority_class import Entry, PriorityClass
from scheduler.waiting.queue import Key
from scheduler.worker import Worker

MOST_WEIGHED = 32
"""Requests at most that are weighed against an executor's batch at a time."""

RECENT = 1024
"""Requests that came last."""

NEARLY_ALL = 0.99

ONE_IN = 200
"""The most expensive of so many requests that came last is an outlier; there is none before so many have come."""


@dataclass(frozen=True, slots=True)
class Promise:
    """How far requests may be overtaken by cheaper ones; found by simulation (docs/research/lengthwise-strategy.md)."""

    share: float = Scheduling.overtaking_factor
    """β: work that may be served before a request although it came later, as a share of the wait that first come, first
    served would have meant."""
    similar_factor: float = 1.25
    """Requests up to this many times as expensive as the cheapest are its equals; the one that fits best goes first."""
    outlier_factor: float = Scheduling.outlier_factor
    """Times as much work that may be served before a request that is more expensive than nearly all."""

    def __post_init__(self) -> None:
        if self.share < 0 or min(self.similar_factor, self.outlier_factor) < 1:
            raise ValueError(f"the overtaking factor must not be negative, the others not less than 1: {self}")


class RunningQuantile:
    """Quantiles of the last `count` numbers, which are sorted at all times."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, number: float) -> None:
        """Add a number, and forget the oldest if there are too many."""
        self._latest.append(number)
        bisect.insort(self._sorted, number)
        if len(self._latest) > self._count:
            del self._sorted[bisect.bisect_left(self._sorted, self._latest.popleft())]

    def quantile(self, share: float) -> float:
        """The number that this share of the others does not exceed, by the nearest rank below; 0 before the first."""
        return self._sorted[int(share * (len(self._sorted) - 1))] if self._sorted else 0.0


class PromisedQueue(Collection[Request]):
    """A Queue: due requests first, then promoted ones, then the cheapest."""

    def __init__(self, prices: Prices, promise: Promise, aging: Aging) -> None:
        self._prices = prices
        self._promise = promise
        self._aging = aging
        self._entries: dict[Request, Entry] = {}
        self._classes: dict[int, PriorityClass] = {}
        self._taken = 0.0  # S
        self._waits = RunningQuantile(RECENT)  # B, when each request came
        self._usual_wait = 0.0  # Q
        self._works = RunningQuantile(RECENT)  # the work of each request when it came

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request: object) -> bool:
        return request in self._entries

    def __iter__(self) -> Iterator[Request]:
        return iter(self._entries)

    @property
    def best_priority(self) -> int:
        return min(self._classes)

    def ranked(self, now: float) -> Iterator[Request]:
        for _, entries in sorted(self._classes.items()):
            urgent = self._urgent(entries, now)
            yield from (entry.request for entry in urgent)
            passed = set(urgent)
            yield from (entry.request for entry in entries.by_work if entry not in passed)

    def first(self, worker: Worker, now: float, count: int) -> Sequence[Request]:
        """The due and promoted requests, if any; else the cheapest that are worth a place beside the executor's rows,
        of equals those that need least padding there. The only request of its class is always worth it."""
        entries = self._classes[self.best_priority]
        urgent = self._urgent(entries, now)
        if urgent:
            return [entry.request for entry in urgent[:count]]
        cheapest = self._worth_joining(entries, worker)
        if not cheapest:
            return []
        most = self._promise.similar_factor * cheapest[0].work
        similar = bisect.bisect_right(cheapest, most, key=attrgetter("work"))
        equals = sorted(cheapest[:similar], key=self._key_beside(worker)) if similar > 1 else cheapest[:similar]
        return [entry.request for entry in (*equals, *cheapest[similar:])][:count]

    def add(self, request: Request) -> None:
        entries = self._classes.setdefault(request.priority, PriorityClass())
        if not request.runs:  # else it was handed back, and was counted when it came
            self._waits.add(entries.work)
            self._usual_wait = self._waits.quantile(NEARLY_ALL)
            self._works.add(self._prices.work(request))
        self._entries[request] = entry = self._entry(request, self._taken)
        entries.add(entry)

    def revise(self, request: Request) -> None:
        """Rank a request by its new prediction, at the place that it was promised."""
        entry = self._entries.get(request)
        if entry is not None:
            entries = self._classes[request.priority]
            entries.remove(entry)
            self._entries[request] = revised = self._entry(request, entry.place)
            entries.add(revised)

    def discard(self, request: Request) -> bool:
        entry = self._entries.pop(request, None)
        if entry is None:
            return False
        entries = self._classes[request.priority]
        entries.remove(entry)
        if not entries.by_work:
            del self._classes[request.priority]
        return True

    def serve(self, request: Request) -> None:
        self._taken += self._entries[request].work
        self.discard(request)

    def _entry(self, request: Request, place: float) -> Entry:
        work = self._prices.work(request)
        outlier = len(self._works) >= ONE_IN and work > self._works.quantile(1 - 1 / ONE_IN)
        return Entry(request, work, place, due_at(request, self._aging), outlier)

    def _urgent(self, entries: PriorityClass, now: float) -> list[Entry]:
        """The due and the promoted requests of a class, which go before the cheapest."""
        passed = self._promise.share * max(self._usual_wait, entries.work)
        promoted = entries.promoted(self._taken - passed, self._taken - self._promise.outlier_factor * passed)
        due = entries.due(now)
        return list(dict.fromkeys((*due, *promoted))) if due else promoted

    def _worth_joining(self, entries: PriorityClass, worker: Worker) -> list[Entry]:
        """The cheapest requests of a class, without those that are not worth a place beside an executor's rows."""
        weighed = entries.by_work[:MOST_WEIGHED]
        if len(weighed) == 1:
            return weighed
        worth = set(worth_joining((entry.request for entry in weighed), worker, self._prices.model))
        return [entry for entry in weighed if entry.request in worth]

    def _key_beside(self, worker: Worker) -> Callable[[Entry], Key]:
        """The sorting key of equals: least work first, with the padding that they mean beside an executor's rows."""

        def key(entry: Entry) -> Key:
            return (self._prices.padded_work(entry.request, worker), *entry.by_place[1:])

        return key
