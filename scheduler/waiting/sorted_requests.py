"""Requests by key, with prefix sums."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import islice
from operator import add, sub
from typing import NamedTuple, TypeAlias

import numpy as np

from scheduler.remaining_length import remaining_length
from scheduler.request import Request

Key: TypeAlias = tuple[float, ...]  # least first, after priority


Keys: TypeAlias = Callable[[Request, float], Key]  # (request, now)


class QueueAhead(NamedTuple):
    place: int = 0
    tokens: float = 0.0  # predicted
    unpredicted: int = 0
    unread: int = 0  # to prefill

    def and_share(self, others: QueueAhead, number: int) -> QueueAhead:
        """Plus `count`, sharing tokens."""
        part = number / max(1, others.place)
        unpredicted = self.unpredicted + round(others.unpredicted * part)
        unread = self.unread + round(others.unread * part)
        return QueueAhead(self.place + number, self.tokens + others.tokens * part, unpredicted, unread)

    def without(self, others: QueueAhead) -> QueueAhead:
        return QueueAhead(*map(sub, self, others))

    def and_all(self, others: QueueAhead) -> QueueAhead:
        return QueueAhead(*map(add, self, others))

    def and_one(self, request: Request) -> QueueAhead:
        return self.and_all(QueueAhead(1, *_amounts(request)))


def _amounts(request: Request) -> tuple[float, int, int]:
    unpredicted = request.predicted_length is None and request.distribution is None
    tokens = 0.0 if unpredicted else remaining_length(request)
    return tokens, int(unpredicted), request.unread


class SortedRequests:
    """Distinct keys, tokens as of insertion."""

    def __init__(self) -> None:
        self.keys: dict[Request, Key] = {}
        self._sorted: list[Key] = []
        self._requests: list[Request] = []
        self._amounts = np.zeros((3, 16))  # by request
        self._aheads: dict[int, QueueAhead] = {}  # by place, until any changes

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def iterate_from(self, key: Key) -> Iterator[Request]:
        return islice(self._requests, bisect_left(self._sorted, key), None)

    def insert(self, key: Key, request: Request) -> None:
        self._aheads.clear()
        place, count = bisect_left(self._sorted, key), len(self._requests)
        if count == self._amounts.shape[1]:
            self._amounts = np.concatenate([self._amounts, np.zeros_like(self._amounts)], axis=1)
        self._amounts[:, place + 1 : count + 1] = self._amounts[:, place:count]
        self._amounts[:, place] = _amounts(request)
        self.keys[request] = key
        self._sorted.insert(place, key)
        self._requests.insert(place, request)

    def remove(self, request: Request) -> bool:
        if request not in self.keys:
            return False
        self._aheads.clear()
        place, left = bisect_left(self._sorted, self.keys.pop(request)), len(self._requests) - 1
        del self._sorted[place], self._requests[place]
        self._amounts[:, place:left] = self._amounts[:, place + 1 : left + 1]
        return True

    def ahead(self, key: Key) -> QueueAhead:
        if not (count := bisect_left(self._sorted, key)):
            return QueueAhead()
        if (found := self._aheads.get(count)) is None:
            tokens, unpredicted, unread = self._amounts[:, :count].sum(axis=1).tolist()
            self._aheads[count] = found = QueueAhead(count, tokens, int(unpredicted), int(unread))
        return found
