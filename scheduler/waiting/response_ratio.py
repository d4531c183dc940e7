"""Highest response ratio next, of single requests: (waited + work) / work, the greatest first (Brinch Hansen 1971).

The work is what is predicted, or only what is to be read of the prompt, which needs no prediction (SGLang's `hrrn`).
The order changes all the time, so all requests are looked at whenever it is asked: as columns of one array, which takes
less than a millisecond for ten thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from math import inf

import numpy as np
from numpy.typing import NDArray

from scheduler.request import Request
from scheduler.serving_time.bilinear import FloatArray
from scheduler.waiting.orders.aged import Aging
from scheduler.waiting.orders.due import due_at, due_key
from scheduler.waiting.queue import Key
from scheduler.waiting.ranked import CountingQueue
from scheduler.waiting.sorted_requests import Ahead

LEAST_WORK = 1e-9
"""Work that a request counts for at least, so that none divides by zero."""

RANKED = 4
"""Numbers of a request that rank it: priority, when it is due, arrival, work. Those of Ahead come after them."""


class ResponseRatioQueue(CountingQueue):
    """A Queue. Requests that are due by their deadline go first. No request starves: its ratio grows without end."""

    def __init__(self, work: Callable[[Request], float], aging: Aging) -> None:
        """`work` of a request may be in any unit."""
        self._work_of = work
        self._aging = aging
        self._places: dict[Request, int] = {}
        self._requests: list[Request] = []
        self._numbers = np.empty((RANKED + len(Ahead()), 64))  # a column a request, in the order of the list, and room

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: object) -> bool:
        return request in self._places

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def best_priority(self) -> int:
        return int(self._columns[0].min())

    def ranked(self, now: float) -> Iterator[Request]:
        priority, score = _score(self._columns, now)
        order = np.argsort(score)
        order = order[np.argsort(priority[order], kind="stable")]
        for (_, own), equal in groupby(order, lambda place: (priority[place], score[place])):
            yield from sorted((self._requests[place] for place in equal), key=_key_of_equals(own))

    def ahead(self, request: Request, now: float) -> Ahead:
        priority, score = _score(self._columns, now)
        own = self._places.get(request)
        own_priority, own_score = _score(self._read(request) if own is None else self._numbers[:, own], now)
        before = (priority < own_priority) | ((priority == own_priority) & (score < own_score))
        key = _key_of_equals(float(own_score))
        for place in np.flatnonzero((priority == own_priority) & (score == own_score)):
            before[place] = key(self._requests[place]) < key(request)
        return self._sum(before)

    def total(self) -> Ahead:
        return self._sum(np.ones(len(self), dtype=np.bool_))

    def add(self, request: Request) -> None:
        place = self._places.setdefault(request, len(self._requests))
        if place == len(self._requests):
            self._requests.append(request)
        if place == self._numbers.shape[1]:
            self._numbers = np.concatenate([self._numbers, np.empty_like(self._numbers)], axis=1)
        self._numbers[:, place] = self._read(request)

    def discard(self, request: Request) -> bool:
        place = self._places.pop(request, None)
        if place is None:
            return False
        last = self._requests.pop()
        if last is not request:
            self._requests[place], self._places[last] = last, place
            self._numbers[:, place] = self._numbers[:, len(self._requests)]
        return True

    def revise(self, request: Request) -> None:
        if request in self._places:
            self.add(request)

    def serve(self, request: Request) -> None:
        self.discard(request)

    @property
    def _columns(self) -> FloatArray:
        return self._numbers[:, : len(self._requests)]

    def _sum(self, chosen: NDArray[np.bool_]) -> Ahead:
        place, tokens, unpredicted, unread = self._columns[RANKED:] @ chosen
        return Ahead(int(place), float(tokens), int(unpredicted), int(unread))

    def _read(self, request: Request) -> FloatArray:
        """The numbers of a request, as of its latest prediction."""
        due = inf if request.begin_by is None else due_at(request, self._aging)
        work = max(LEAST_WORK, self._work_of(request))
        ranks = (request.priority, due, request.times.arrival, work)
        return np.array([*ranks, *Ahead().and_one(request)], dtype=np.float64)


def _score(numbers: FloatArray, now: float) -> tuple[FloatArray, FloatArray]:
    """Priorities, and less the ratio of each request, of those that are due -inf; the least first."""
    priority, due, arrival, work = numbers[:RANKED]
    return priority, np.where(due <= now, -inf, (arrival - now) / work)


def _key_of_equals(score: float) -> Callable[[Request], Key]:
    """Sorting key of requests of one priority and score: by deadline where they are due, else by arrival."""
    return due_key if score == -inf else lambda request: (request.times.arrival, request.row_id)
