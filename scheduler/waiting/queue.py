"""What a waiting queue does, and the order that ranks the requests in it.

How orders compose. The client's `priority` comes before all else: lower is earlier. Of one priority come first the
requests that are due, the earliest deadline first (waiting/ranked.py); after them all others by the strategy's own
order. Every key ends with the row's number, so that no two requests tie and equal requests keep their order of arrival.
Only predicted lengths are known here, never true ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import ClassVar, Protocol

from scheduler.request import Request
from scheduler.waiting.sorted_requests import Ahead, Key


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
