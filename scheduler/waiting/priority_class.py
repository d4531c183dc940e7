"""The requests of one priority in the promised queue, sorted in each of the ways in which it picks them."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from scheduler.request import Request
from scheduler.waiting.queue import Key


@dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """A waiting request and the numbers that rank it."""

    request: Request
    work: float
    """Work that it has still to do, as of its latest prediction."""
    place: float
    """s: the work that had been taken from the queue when it came."""
    due: float
    """When it becomes due, in seconds of the clock; infinity without a deadline."""
    outlier: bool
    """Whether it is more expensive than nearly all."""

    @property
    def by_place(self) -> Key:
        """Sorting key: the first come first."""
        return (self.place, self.request.times.arrival, self.request.row_id)

    @property
    def by_work(self) -> Key:
        """Sorting key: the cheapest first."""
        return (self.work, self.request.times.arrival, self.request.row_id)

    @property
    def by_deadline(self) -> Key:
        """Sorting key: the earliest deadline first."""
        deadline = self.request.deadline
        return (inf if deadline is None else deadline, self.request.times.arrival, self.request.row_id)


_BY_PLACE: Callable[[Entry], Key] = attrgetter("by_place")
_BY_WORK: Callable[[Entry], Key] = attrgetter("by_work")
_BY_DEADLINE: Callable[[Entry], Key] = attrgetter("by_deadline")
_PLACE: Callable[[Entry], float] = attrgetter("place")


class PriorityClass:
    """Entries of one priority, sorted by place and by work at once, and those with a deadline by deadline."""

    def __init__(self) -> None:
        self.by_work: list[Entry] = []
        """All entries, the cheapest first."""
        self.work = 0.0
        """Work of all entries together."""
        self._by_place: list[Entry] = []  # all but outliers
        self._outliers_by_place: list[Entry] = []
        self._by_deadline: list[Entry] = []  # those that have one

    def add(self, entry: Entry) -> None:
        """Put an entry in."""
        for entries, key in self._lists_of(entry):
            bisect.insort(entries, entry, key=key)
        self.work += entry.work

    def remove(self, entry: Entry) -> None:
        """Take an entry out, which must be here."""
        for entries, key in self._lists_of(entry):
            del entries[bisect.bisect_left(entries, key(entry), key=key)]
        self.work = self.work - entry.work if self.by_work else 0.0  # so that no rounding error stays for ever

    def due(self, now: float) -> list[Entry]:
        """Entries that are due, the earliest deadline first."""
        return [entry for entry in self._by_deadline if entry.due <= now]

    def promoted(self, limit: float, outliers_limit: float) -> list[Entry]:
        """Entries whose place is at most their limit, the first come first."""
        usual = self._by_place[: bisect.bisect_right(self._by_place, limit, key=_PLACE)]
        outliers = self._outliers_by_place[: bisect.bisect_right(self._outliers_by_place, outliers_limit, key=_PLACE)]
        return list(heapq.merge(usual, outliers, key=_BY_PLACE)) if outliers else usual

    def _lists_of(self, entry: Entry) -> Iterator[tuple[list[Entry], Callable[[Entry], Key]]]:
        """The lists that an entry belongs to, and what each is sorted by."""
        yield self._outliers_by_place if entry.outlier else self._by_place, _BY_PLACE
        yield self.by_work, _BY_WORK
        if entry.request.deadline is not None:
            yield self._by_deadline, _BY_DEADLINE
