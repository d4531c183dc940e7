"""What a waiting queue does, and the order that ranks the requests in it.

How orders compose. The client's `priority` comes before all else: lower is earlier. Of one priority come first the
requests that are due, the earliest deadline first (waiting/ranked.py); after them all others by the strategy's own
order. Every key ends with the row's number, so that no two requests tie and equal requests keep their order of arrival.
Only predicted lengths are known here, never true ones.

Requests are kept sorted by key, in blocks of which each knows what its requests are to read and expected to generate:
so a request comes, goes, or learns what is ahead of it in a time that hardly grows with their number.
"""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from scheduler.remaining_length import remaining_length
from scheduler.request import Request

Key: TypeAlias = tuple[float, ...]
"""A sorting key; the least is served first, and the first number is the request's priority."""

MOST = 512
"""Requests of a block, which is parted in two when it has more."""


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

    def and_all(self, entries: Iterable[_Entry]) -> Ahead:
        """The sum over these requests and those of more entries."""
        place, tokens, unpredicted, unread = self
        for entry in entries:
            place, tokens = place + 1, tokens + entry.tokens
            unpredicted, unread = unpredicted + entry.unpredicted, unread + entry.unread
        return Ahead(place, tokens, unpredicted, unread)

    def and_share(self, others: Ahead, number: int) -> Ahead:
        """These requests and so many of others, with their part of what those are to read and expected to generate."""
        part = number / max(1, others.place)
        unpredicted = self.unpredicted + round(others.unpredicted * part)
        unread = self.unread + round(others.unread * part)
        return Ahead(self.place + number, self.tokens + others.tokens * part, unpredicted, unread)

    def without(self, others: Ahead) -> Ahead:
        """These requests without others, which are among them."""
        place, tokens, unpredicted, unread = others
        return Ahead(self.place - place, self.tokens - tokens, self.unpredicted - unpredicted, self.unread - unread)

    def and_one(self, request: Request) -> Ahead:
        """These requests and one more."""
        return self.and_all([_enter((), request)])


def expected_tokens(request: Request) -> float | None:
    """Tokens that a request is predicted to generate from now on; None without a prediction."""
    known = request.predicted_length is not None or request.distribution is not None
    return remaining_length(request) if known else None


class _Entry(NamedTuple):
    """A request as it is sorted: by its key, which no other has."""

    key: Key
    request: Request
    tokens: float
    """Expected of it; 0 without a prediction."""
    unpredicted: bool
    unread: int


def _enter(key: Key, request: Request) -> _Entry:
    """A request with what it is expected to read and to generate by now."""
    tokens = expected_tokens(request)
    return _Entry(key, request, tokens or 0.0, tokens is None, request.unread if request.needs_prefill else 0)


class _Block:
    """Neighbours, the least key first, and the sums over them."""

    def __init__(self, entries: list[_Entry]) -> None:
        self.entries = entries
        self.sums = Ahead().and_all(entries)

    def insert(self, entry: _Entry) -> None:
        bisect.insort(self.entries, entry)
        self.sums = self.sums.and_all([entry])

    def remove(self, key: Key) -> None:
        entry = self.entries.pop(self.place(key))
        place, tokens, unpredicted, unread = self.sums
        self.sums = Ahead(place - 1, tokens - entry.tokens, unpredicted - entry.unpredicted, unread - entry.unread)

    def place(self, key: Key) -> int:
        """The place of the first entry with this key or a greater one."""
        return bisect.bisect_left(self.entries, key, key=_KEY)


class SortedRequests:
    """Iterating gives the requests, the least key first. No two keys are equal."""

    def __init__(self) -> None:
        self._blocks = [_Block([])]  # no other is empty

    def __len__(self) -> int:
        return sum(len(block.entries) for block in self._blocks)

    def __iter__(self) -> Iterator[Request]:
        return (entry.request for block in self._blocks for entry in block.entries)

    def iterate_from(self, key: Key) -> Iterator[Request]:
        """The requests with this key or greater ones."""
        at = self._block_of(key)
        for block in self._blocks[at:]:
            for entry in block.entries[block.place(key) if block is self._blocks[at] else 0 :]:
                yield entry.request

    def insert(self, key: Key, request: Request) -> None:
        """Put a request in, with what it is expected to generate by now."""
        at = min(self._block_of(key), len(self._blocks) - 1)
        block = self._blocks[at]
        block.insert(_enter(key, request))
        if len(block.entries) > MOST:
            half = MOST // 2
            self._blocks[at : at + 1] = _Block(block.entries[:half]), _Block(block.entries[half:])

    def remove(self, key: Key) -> None:
        """Take the request with this key out, which must be here."""
        at = self._block_of(key)
        self._blocks[at].remove(key)
        if not self._blocks[at].entries and len(self._blocks) > 1:
            del self._blocks[at]

    def ahead(self, key: Key) -> Ahead:
        """Sums over the requests whose keys are less than this one."""
        at = self._block_of(key)
        ahead = self._sums(self._blocks[:at])
        if at == len(self._blocks):
            return ahead
        block = self._blocks[at]
        return ahead.and_all(block.entries[: block.place(key)])

    def total(self) -> Ahead:
        """Sums over all requests."""
        return self._sums(self._blocks)

    def _sums(self, blocks: list[_Block]) -> Ahead:
        sums = [block.sums for block in blocks]
        return Ahead(*(sum(column) for column in zip(*sums, strict=True))) if sums else Ahead()

    def _block_of(self, key: Key) -> int:
        """Index of the first block that ends with this key or a greater one."""
        return bisect.bisect_left(self._blocks, key, key=_last_key)


_KEY = attrgetter("key")


def _last_key(block: _Block) -> Key:
    return block.entries[-1].key if block.entries else ()


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
        """Note that a request begins to wait, or waits with another prediction."""
        return

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

    def ahead_of_newcomer(self, request: Request, by_key: Ahead) -> Ahead:
        """About what would be ahead of a request that came now, of which so much is ahead by key."""
        return by_key

    def passed_by(self, before: Ahead) -> float | None:
        """Work of later requests that may still go before a waiting one with so much before it, in generated tokens;
        None where there is no bound."""
        return None


class Queue(Collection[Request], ABC):
    """Requests that wait. Iterating gives them in no particular order, `ranked` best first."""

    @property
    @abstractmethod
    def best_priority(self) -> int:
        """The lowest `priority` of the requests that wait; only asked while there are any."""

    @property
    @abstractmethod
    def exact(self) -> bool:
        """Whether `ahead` knows the places of requests, else about that of a newcomer only."""

    @abstractmethod
    def ranked(self, now: float) -> Iterable[Request]:
        """All requests, best first. Time never goes back."""

    @abstractmethod
    def add(self, request: Request) -> None:
        """Put a request in."""

    @abstractmethod
    def discard(self, request: Request) -> bool:
        """Take a request out; False when it is not here."""

    @abstractmethod
    def revise(self, request: Request) -> None:
        """Rank a request anew, since its prediction has changed; does nothing when it is not here."""

    @abstractmethod
    def serve(self, request: Request) -> None:
        """Take a request out that goes to an executor."""

    @abstractmethod
    def ahead(self, request: Request, now: float) -> Ahead:
        """The requests that are ahead of one that waits here, or that would be if it came now."""

    @abstractmethod
    def total(self) -> Ahead:
        """All requests: what is ahead of one that comes last."""

    def passed_by(self, request: Request, before: Ahead) -> float | None:
        """Work of requests that come from now on and may go before one that waits here, in generated tokens; None
        where there is no bound. Those of better priority and those that are due are left out."""
        return None
