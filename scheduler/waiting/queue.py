"""The order that ranks the requests of a waiting queue.

How orders compose. The client's `priority` comes before all else: lower is earlier. Of one priority come first the
requests that are due, the earliest deadline first (waiting/ranked.py); after them all others by the strategy's own
order. Every key ends with the row's number, so that no two requests tie and equal requests keep their order of arrival.
Only predicted lengths are known here, never true ones.

Requests are kept sorted by key: so a request comes, goes, or learns what is ahead of it in a time that hardly grows
with their number.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from operator import add, sub
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np

from scheduler.remaining_length import remaining_length
from scheduler.request import Request

Key: TypeAlias = tuple[float, ...]
"""A sorting key; the least is served first, and the first number is the request's priority."""

Keys: TypeAlias = Callable[[Request, float], Key]
"""(request, now in seconds of the clock) -> its sorting key at that moment."""


class Ahead(NamedTuple):
    """The requests before another one."""

    place: int = 0
    """Number of the requests before it."""
    tokens: float = 0.0
    """Tokens that those with a prediction are expected to generate from now on."""
    unpredicted: int = 0
    """Number of requests without a prediction."""
    unread: int = 0
    """Tokens that must be read before these requests can generate."""

    def and_share(self, others: Ahead, number: int) -> Ahead:
        """These requests and so many of others, with their part of what those are to read and expected to generate."""
        part = number / max(1, others.place)
        unpredicted = self.unpredicted + round(others.unpredicted * part)
        unread = self.unread + round(others.unread * part)
        return Ahead(self.place + number, self.tokens + others.tokens * part, unpredicted, unread)

    def without(self, others: Ahead) -> Ahead:
        """These requests without others, which are among them."""
        return Ahead(*map(sub, self, others))

    def and_one(self, request: Request) -> Ahead:
        """These requests and one more."""
        return Ahead(*map(add, self, (1, *_amounts(request))))


def _amounts(request: Request) -> tuple[float, int, int]:
    """Of a request: tokens that it is predicted to generate from now on, 1 where it has no prediction, and tokens to
    read first."""
    unpredicted = request.predicted_length is None and request.distribution is None
    tokens = 0.0 if unpredicted else remaining_length(request)
    return tokens, int(unpredicted), request.unread if request.needs_prefill else 0


class SortedRequests:
    """Iterating gives the requests, the least key first. No two keys are equal.

    What each is expected to read and to generate is as of when it was put in. It stands in arrays, which are summed and
    moved so fast that thousands may wait.
    """

    def __init__(self) -> None:
        self.keys: dict[Request, Key] = {}
        """The key of each request, in no particular order. To be read only."""
        self._sorted: list[Key] = []
        self._requests: list[Request] = []
        self._amounts = np.zeros((3, 16))  # a column for each request, as `_amounts` has them, and some to spare

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def iterate_from(self, key: Key) -> Iterator[Request]:
        """The requests with this key or greater ones."""
        return islice(self._requests, bisect_left(self._sorted, key), None)

    def insert(self, key: Key, request: Request) -> None:
        """Put a request in, with what it is expected to generate by now."""
        place, count = bisect_left(self._sorted, key), len(self)
        if count == self._amounts.shape[1]:
            self._amounts = np.concatenate([self._amounts, np.zeros_like(self._amounts)], axis=1)
        self._amounts[:, place + 1 : count + 1] = self._amounts[:, place:count]
        self._amounts[:, place] = _amounts(request)
        self.keys[request] = key
        self._sorted.insert(place, key)
        self._requests.insert(place, request)

    def remove(self, request: Request) -> bool:
        """Take a request out; False when it is not here."""
        if request not in self.keys:
            return False
        place, left = bisect_left(self._sorted, self.keys.pop(request)), len(self) - 1
        del self._sorted[place], self._requests[place]
        self._amounts[:, place:left] = self._amounts[:, place + 1 : left + 1]
        return True

    def ahead(self, key: Key) -> Ahead:
        """Sums over the requests whose keys are less than this one."""
        count = bisect_left(self._sorted, key)
        tokens, unpredicted, unread = self._amounts[:, :count].sum(axis=1).tolist()
        return Ahead(count, tokens, int(unpredicted), int(unread))


class Order(Protocol):
    """Ranks the requests of one queue. Only `key` must be written; the rest is for orders that remember or
    rearrange."""

    by_key: ClassVar[bool] = True
    """Whether requests are served by their keys, the least first; else as `rank` says."""
    by_entry: ClassVar[bool] = False
    """Whether a key holds only for a request that has entered."""

    @abstractmethod
    def key(self, request: Request, now: float) -> Key:
        """The sorting key of a request at a moment, in seconds of the clock."""
        ...

    def changes_at(self, request: Request) -> tuple[float, ...]:
        """The moments at which a waiting request's key changes; between them it stays the same."""
        return ()

    def enter(self, request: Request) -> None:
        """Note that a request begins to wait."""
        return

    def revise(self, request: Request) -> None:
        """Note that a waiting request has another prediction."""
        self.leave(request)
        self.enter(request)

    def leave(self, request: Request) -> None:
        """Note that a request waits no more, whatever the reason."""
        return

    def serve(self, request: Request, in_turn: bool) -> None:
        """Note that a request goes to an executor, before it leaves; `in_turn`: it had the least key."""
        return

    def rank(self, in_turn: Iterable[Request], keys: Mapping[Request, Key], now: float) -> Iterable[Request]:
        """The requests as they are served, from the requests by key and their keys. A key's second number is 0 for a
        request that is due or in the background, which keeps its place, else 1."""
        return in_turn

    def ahead_of_newcomer(self, request: Request, by_key: Ahead, now: float) -> Ahead:
        """About what would be ahead of a request that came now, of which so much is ahead by key."""
        return by_key

    def passed_by(self, before: Ahead) -> float | None:
        """Work of later requests that may still go before a waiting one with so much before it, in generated tokens;
        None where there is no bound."""
        return None
