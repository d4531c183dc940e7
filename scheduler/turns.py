"""A waiting line in which the cheapest request goes first, but no request waits much longer than in line.

Cheap is what takes little of the device's time (scheduler.work). To age requests without a clock, and at whatever speed
the device works, waiting is counted in work too: S, the work of all requests that have been taken from the line. A
request of work w that came at S = s, when N rows ran, is promoted once

    S - s  >=  β·B + κ·(N'·w' - N·w)

B is the work that waits now, which is how long one that comes now would wait in a line without overtaking; N'·w' is
about what the device does while a long request runs, with N' the rows that run now and w' the 95th percentile of recent
work. So all are promised to end about as soon as a long request would that came now, first come, first served: when
more waits, all may wait longer. Promoted requests go first, in the order of s - κ·N·w; of the others the cheapest does.

The bound. Let B* be the most work of its class of `priority` that waits at a time while a request does, N* the most
rows and w* the largest work of a request. Once β·B* + κ·N*·w* has been taken since it came, it is promoted for good.
From then on only promoted ones are taken, those that come now have a later place than it, and those that waited are B*
at most. So before it no more is taken than

    (1 + β)·B* + (1 + κ·N*)·w*

unless of better classes, however many cheaper requests come. With a profile, work is seconds of a device; without one
it is in units of scheduler.work. It is predicted work: the bound is as good as the predictions' sum. A row that was
handed back begins to wait anew, its place being S alone.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from scheduler.patience import Patience
from scheduler.request import Request
from scheduler.work import Work
from scheduler.worker import Worker

WEIGHED = 32
"""Requests at most that are weighed against an executor's batch."""

RECENT = 256
"""Requests whose work makes the 95th percentile."""

Key: TypeAlias = tuple[float, float, int]
"""What is sorted by; then arrival and the row's number."""


@dataclass(frozen=True, eq=False, slots=True)
class Turn:
    """A waiting request's place."""

    request: Request
    work: float
    place: float
    """s - κ·N·w."""

    @property
    def by_place(self) -> Key:
        return (self.place, self.request.times.arrival, self.request.row_id)

    @property
    def by_work(self) -> Key:
        return (self.work, self.request.times.arrival, self.request.row_id)


class SortedTurns:
    """The requests of one class, by place and by work at once."""

    def __init__(self) -> None:
        self.by_place: list[Turn] = []
        self.by_work: list[Turn] = []
        self.work = 0.0
        """Of all of them."""

    def add(self, turn: Turn) -> None:
        bisect.insort(self.by_place, turn, key=_by_place)
        bisect.insort(self.by_work, turn, key=_by_work)
        self.work += turn.work

    def remove(self, turn: Turn) -> None:
        del self.by_place[bisect.bisect_left(self.by_place, turn.by_place, key=_by_place)]
        del self.by_work[bisect.bisect_left(self.by_work, turn.by_work, key=_by_work)]
        self.work = self.work - turn.work if self.by_work else 0.0  # so that no rounding stays for ever

    def promoted(self, limit: float) -> int:
        """How many have their place at the limit or before it."""
        return bisect.bisect_right(self.by_place, limit, key=_place)


class Turns(Collection[Request]):
    """What waits. Iterating gives the best first, as far as that does not depend on which executor asks."""

    def __init__(self, work: Work, patience: Patience) -> None:
        self._work = work
        self._patience = patience
        self._turns: dict[Request, Turn] = {}
        self._classes: dict[int, SortedTurns] = {}
        self._taken = 0.0  # S
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._long = 0.0  # w'
        self._workers: dict[int, Worker] = {}  # executors that have asked

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, request: object) -> bool:
        return request in self._turns

    def __iter__(self) -> Iterator[Request]:
        for _, turns in sorted(self._classes.items()):
            promoted = turns.by_place[: turns.promoted(self._limit(turns))]
            yield from (turn.request for turn in promoted)
            passed = set(promoted)
            yield from (turn.request for turn in turns.by_work if turn not in passed)

    def best_class(self, now: float) -> int:
        return min(self._classes)

    def add(self, request: Request) -> None:
        work = self._work.of(request)
        place = self._taken
        if not request.runs:  # else it made way for one that must not find it first in line again
            place -= self._patience.own * self._rows * work
            self._recent.append(work)
            self._long = sorted(self._recent)[int(0.95 * (len(self._recent) - 1))]
        turn = self._turns[request] = Turn(request, work, place)
        self._classes.setdefault(request.priority, SortedTurns()).add(turn)

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
        """Promoted ones, if any; else the cheapest, of equals those that need least padding beside its rows."""
        self._workers[worker.info.index] = worker
        turns = self._classes[self.best_class(now)]
        promoted = turns.promoted(self._limit(turns))
        if promoted:
            return [turn.request for turn in turns.by_place[: min(promoted, count)]]
        cheapest = turns.by_work[: max(count, WEIGHED)]
        near = bisect.bisect_right(cheapest, self._patience.near * cheapest[0].work, key=_work)
        equals = sorted(cheapest[:near], key=self._fit(worker)) if near > 1 else cheapest[:near]
        return [turn.request for turn in (*equals, *cheapest[near:])][:count]

    def _fit(self, worker: Worker) -> Callable[[Turn], Key]:
        def key(turn: Turn) -> Key:
            return (self._work.beside(turn.request, worker), turn.request.times.arrival, turn.request.row_id)

        return key

    def _limit(self, turns: SortedTurns) -> float:
        """The last place that is promoted."""
        patience = self._patience
        return self._taken - patience.backlog * turns.work - patience.own * self._rows * self._long

    @property
    def _rows(self) -> int:
        """N: rows that run, as far as executors are known."""
        return sum(worker.rows for worker in self._workers.values() if not worker.lost)


def _by_place(turn: Turn) -> Key:
    return turn.by_place


def _by_work(turn: Turn) -> Key:
    return turn.by_work


def _place(turn: Turn) -> float:
    return turn.place


def _work(turn: Turn) -> float:
    return turn.work
