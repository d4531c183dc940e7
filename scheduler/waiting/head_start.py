"""The default's order: by arrival, but what is cheaper than the mean is put forward, as much for each halving.

To count waiting without a clock, and at whatever speed the device works, it is counted in work (prices.py): S, the work
of all requests that have been taken from the queue. A request of work w that comes at S = s is ranked, for good, by

    s - D·m·max(0, log2(m / w))

the least first, where m is the mean work of the requests that came last. So one that costs half as much as the mean is
served as if it had come D mean requests earlier: of a short queue the cheap go first, and a long one is served nearly
in order of arrival. What costs the mean or more is never put back: the longest waits are of those.

The bound. A request that came later goes first only while less than H has been taken since the other came, where

    H = D·m·log2(min(w, m) / w_min)

w_min is the work of the cheapest request; should m change meanwhile, H is the difference of the two keys' second terms
at most. Once H has been taken, only such requests go first as wait by then. Let B* be the most work that waits at a
time in its class of `priority`, and w* the work that one plan takes from the queue at most: before it no more is taken
than

    B* + H + w*

unless of better priority or since it was due (orders/due.py), however many cheaper requests come. First come, first
served, that is B* + w*. It is predicted work: the bound is as good as the predictions' sum. A row that was handed back
begins to wait anew.

Work is counted in tokens (prices.py), of a device that runs as many rows as it can: with W executors W times as much
is done in a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log2

from scheduler.request import Request
from scheduler.waiting.orders.aged import Aging
from scheduler.waiting.orders.due import DueFirst
from scheduler.waiting.prices import PricesNow
from scheduler.waiting.queue import Key
from scheduler.waiting.ranked import RankedQueue

RECENT = 1024
"""Requests whose mean work counts: each newcomer has this part of it."""

LEAST_WORK = 1e-9
"""Work that a request counts for at least, so that it has a logarithm."""


@dataclass(eq=False, slots=True)
class _Entry:
    """The numbers that rank a waiting request, in units of work."""

    place: float
    """s: what had been taken from the queue when it came."""
    work: float
    """w: what it has still to do, as of its latest prediction."""
    head_start: float
    """Work by which it is put forward."""


class HeadStartQueue(RankedQueue):
    """A Queue: requests that are due first, then by place less head start. It is its own Order."""

    def __init__(self, prices: PricesNow, halving: float, aging: Aging) -> None:
        """`halving` is D: the head start of half the mean work, in works of the mean request; 0: by place alone."""
        if halving < 0:
            raise ValueError(f"the head start must not be negative: {halving}")
        super().__init__(DueFirst(self, aging))
        self._prices = prices
        self._halving = halving
        self._entries: dict[Request, _Entry] = {}
        self._taken = 0.0  # S
        self._mean = 0.0  # m
        self._least = inf  # w_min
        self._came = 0

    def key(self, request: Request, now: float) -> Key:
        entry = self._entries.get(request) or self._rank(request)  # of one that may come, as if it came now
        return (request.priority, entry.place - entry.head_start, request.times.arrival, request.row_id)

    def changes_at(self, request: Request) -> tuple[float, ...]:
        return ()

    def add(self, request: Request) -> None:
        work = self._work(request)
        self._least = min(self._least, work)
        if not self._came or not request.runs:  # else it was handed back, and was counted when it came
            self._came += 1
            self._mean += (work - self._mean) / min(self._came, RECENT)
        self._entries[request] = self._rank(request)
        super().add(request)

    def revise(self, request: Request) -> None:
        """Rank a request by its new prediction, at the place that it has."""
        entry = self._entries.get(request)
        if entry is not None:
            entry.work = self._work(request)
            entry.head_start = self._head_start(entry.work)
            super().revise(request)

    def discard(self, request: Request) -> bool:
        self._entries.pop(request, None)
        return super().discard(request)

    def serve(self, request: Request) -> None:
        self._taken += self._entries[request].work
        self.discard(request)

    def passed_for(self, request: Request) -> float:
        """H, less what has been taken since the request came, while the cheapest request is none cheaper than yet."""
        entry = self._entries[request]
        work = entry.place - entry.head_start + self._head_start(self._least) - self._taken
        return max(0.0, work) * self._prices().unit

    def _rank(self, request: Request) -> _Entry:
        work = self._work(request)
        return _Entry(self._taken, work, self._head_start(work))

    def _work(self, request: Request) -> float:
        return max(LEAST_WORK, self._prices().work(request))

    def _head_start(self, work: float) -> float:
        return self._halving * self._mean * log2(self._mean / work) if work < self._mean else 0.0
