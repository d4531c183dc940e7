"""A waiting line in which the cheapest request goes first, but no request waits much longer than in line.

Cheap is what takes little of the device's time (waiting.work). To age requests without a clock, and at whatever speed
the device works, waiting is counted in work too: S, the work of all requests that have been taken from the line. A
request that came at S = s is promoted once

    S - s  >=  β·max(Q, B)

B is the work that waits now, which is how long one that comes now would wait if nobody overtook, whatever the order was
so far; Q is the 99th percentile of that over the requests that came last. So all are promised to begin about as soon as
nearly all would have begun, first come, first served. Outliers, the most expensive one of ONE_IN, are promised a later
start, and promoted at `outlier_factor` times as much: so few can hold a tenth of all work, which all others would wait
for. Requests that are due by their deadline go first, the earliest deadline first (order.due_at); then the promoted in
the order in which they came; of the others the cheapest, as far as it is worth a place beside the rows that run
(company.py).

The bound. Let B* be the most work that waits in a class of `priority` while a request does, or did when one of the
RECENT requests before it came; let w* be the work that one plan takes from the line at most. Once β·B* has been taken
since it came, it is promoted for good. From then on only promoted ones are taken, those that came later have later
places, and those that came before it waited when it came: B* at most. So before it no more is taken than

    (1 + β)·B* + w*        (1 + β·outlier_factor)·B* + w* before an outlier

unless of better classes or since it was due, however many cheaper requests come. An outlier is one by its latest
prediction. A line of Q requests at most bounds B* by Q times the work of the largest. It is predicted work: the bound
is as good as the predictions' sum. A row that was handed back begins to wait anew, and waits as long at most again; it
makes way for others once (preemption.py).

With a profile, work is seconds of a device that runs as many rows as it can, so with W executors this is about W times
as many seconds as it takes, besides the rest of what runs. Who is not worth a place waits for work to be taken or for
rows to end, and an executor without rows is given the first; while few rows run for that reason work takes longer.
Without a profile, work is in units of scheduler.work.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from scheduler.batching.company import worth_joining
from scheduler.request import Request
from scheduler.waiting.order import Aging, Key, due_at
from scheduler.waiting.patience import Promise
from scheduler.waiting.recent import Recent
from scheduler.waiting.work import Work
from scheduler.worker import Worker

WEIGHED = 32
"""Requests at most that are weighed against an executor's batch at a time."""

RECENT = 1024
"""Requests that came last."""

NEARLY_ALL = 0.99

ONE_IN = 200
"""Of so many requests that came last the most expensive one is an outlier; none is before so many have come."""


@dataclass(frozen=True, eq=False, slots=True)
class Turn:
    """A waiting request's place."""

    request: Request
    work: float
    place: float
    """s."""
    due: float
    """From when on it is due, in seconds of the clock; infinity without a deadline."""
    outlier: bool

    @property
    def by_place(self) -> Key:
        return (self.place, self.request.times.arrival, self.request.row_id)

    @property
    def by_work(self) -> Key:
        return (self.work, self.request.times.arrival, self.request.row_id)

    @property
    def by_deadline(self) -> Key:
        deadline = self.request.deadline
        return (inf if deadline is None else deadline, *self.by_place[1:])


class SortedTurns:
    """The requests of one class, by place and by work at once, and those of them that have a deadline by that."""

    def __init__(self) -> None:
        self.by_place: list[Turn] = []
        """But for outliers."""
        self.outliers: list[Turn] = []
        """By place too."""
        self.by_work: list[Turn] = []
        self.by_deadline: list[Turn] = []
        self.work = 0.0
        """Of all of them."""

    def add(self, turn: Turn) -> None:
        for turns, key in self._kept(turn):
            bisect.insort(turns, turn, key=key)
        self.work += turn.work

    def remove(self, turn: Turn) -> None:
        for turns, key in self._kept(turn):
            del turns[bisect.bisect_left(turns, key(turn), key=key)]
        self.work = self.work - turn.work if self.by_work else 0.0  # so that no rounding stays for ever

    def due(self, now: float) -> list[Turn]:
        """The earliest deadline first."""
        return [turn for turn in self.by_deadline if turn.due <= now]

    def promoted(self, limit: float, outliers_limit: float) -> list[Turn]:
        """Those whose place is their limit or before it, first come first."""
        usual = self.by_place[: bisect.bisect_right(self.by_place, limit, key=_place)]
        outliers = self.outliers[: bisect.bisect_right(self.outliers, outliers_limit, key=_place)]
        return list(heapq.merge(usual, outliers, key=_by_place)) if outliers else usual

    def _kept(self, turn: Turn) -> Iterator[tuple[list[Turn], Callable[[Turn], Key]]]:
        yield self.outliers if turn.outlier else self.by_place, _by_place
        yield self.by_work, _by_work
        if turn.request.deadline is not None:
            yield self.by_deadline, _by_deadline


class PromisedQueue(Collection[Request]):
    """What waits. Iterating gives the best first, as far as that does not depend on which executor asks."""

    def __init__(self, work: Work, patience: Promise, aging: Aging) -> None:
        self._work = work
        self._patience = patience
        self._aging = aging
        self._turns: dict[Request, Turn] = {}
        self._classes: dict[int, SortedTurns] = {}
        self._taken = 0.0  # S
        self._waits = Recent(RECENT)  # B, when each request came
        self._promise = 0.0  # Q
        self._works = Recent(RECENT)  # w, of each request when it came
        self._now = -inf  # when somebody asked last

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, request: object) -> bool:
        return request in self._turns

    def __iter__(self) -> Iterator[Request]:
        for _, turns in sorted(self._classes.items()):
            urgent = self._urgent(turns)
            yield from (turn.request for turn in urgent)
            passed = set(urgent)
            yield from (turn.request for turn in turns.by_work if turn not in passed)

    def best_class(self, now: float) -> int:
        self._now = now
        return min(self._classes)

    def add(self, request: Request) -> None:
        turns = self._classes.setdefault(request.priority, SortedTurns())
        if not request.runs:  # else it is no newcomer
            self._waits.add(turns.work)
            self._promise = self._waits.quantile(NEARLY_ALL)
            self._works.add(self._work.of(request))
        turn = self._turn(request, self._taken)
        self._turns[request] = turn
        turns.add(turn)

    def revise(self, request: Request) -> None:
        """It keeps its place: that is what it was promised."""
        turn = self._turns.get(request)
        if turn is not None:
            turns = self._classes[request.priority]
            turns.remove(turn)
            revised = self._turn(request, turn.place)
            self._turns[request] = revised
            turns.add(revised)

    def discard(self, request: Request) -> bool:
        turn = self._turns.pop(request, None)
        if turn is None:
            return False
        turns = self._classes[request.priority]
        turns.remove(turn)
        if not turns.by_work:
            del self._classes[request.priority]
        return True

    def serve(self, request: Request) -> None:
        self._taken += self._turns[request].work
        self.discard(request)

    def first(self, worker: Worker, now: float, count: int) -> Sequence[Request]:
        """Those that are due, and promoted ones, if any; else the cheapest that are worth a place beside its rows, of
        equals those that need least padding there. The only one of its class is always worth it."""
        turns = self._classes[self.best_class(now)]
        urgent = self._urgent(turns)
        if urgent:
            return [turn.request for turn in urgent[:count]]
        cheapest = self._worth_joining(turns, worker)
        if not cheapest:
            return []
        near = bisect.bisect_right(cheapest, self._patience.near * cheapest[0].work, key=_work)
        equals = sorted(cheapest[:near], key=self._fit(worker)) if near > 1 else cheapest[:near]
        return [turn.request for turn in (*equals, *cheapest[near:])][:count]

    def _turn(self, request: Request, place: float) -> Turn:
        work = self._work.of(request)
        outlier = len(self._works) >= ONE_IN and work > self._works.quantile(1 - 1 / ONE_IN)
        return Turn(request, work, place, due_at(request, self._aging), outlier)

    def _urgent(self, turns: SortedTurns) -> list[Turn]:
        """Who goes before the cheapest."""
        passed = self._patience.share * max(self._promise, turns.work)
        promoted = turns.promoted(self._taken - passed, self._taken - self._patience.outlier_factor * passed)
        due = turns.due(self._now)
        return list(dict.fromkeys((*due, *promoted))) if due else promoted

    def _worth_joining(self, turns: SortedTurns, worker: Worker) -> list[Turn]:
        weighed = turns.by_work[:WEIGHED]
        if len(weighed) == 1:
            return weighed
        worth = set(worth_joining((turn.request for turn in weighed), worker, self._work.model))
        return [turn for turn in weighed if turn.request in worth]

    def _fit(self, worker: Worker) -> Callable[[Turn], Key]:
        def key(turn: Turn) -> Key:
            return (self._work.beside(turn.request, worker), *turn.by_place[1:])

        return key


def _by_place(turn: Turn) -> Key:
    return turn.by_place


def _by_work(turn: Turn) -> Key:
    return turn.by_work


def _by_deadline(turn: Turn) -> Key:
    return turn.by_deadline


def _place(turn: Turn) -> float:
    return turn.place


def _work(turn: Turn) -> float:
    return turn.work
