"""Protocols of the waiting queue, and of the order that ranks the requests in it.

How orders compose. The client's `priority` comes before all else: lower is earlier. Of one priority come first the
requests that are due, the earliest deadline first (orders/due.py); after them all others by the strategy's own order.
Every key ends with the row's number, so that no two requests tie and equal requests keep their order of arrival. Only
predicted lengths are known here, never true ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol, TypeAlias

from scheduler.request import Request

Key: TypeAlias = tuple[float, ...]
"""A sorting key; the least is served first, and the first number is the request's priority."""


class Order(Protocol):
    """Ranks requests that wait."""

    def key(self, request: Request, now: float) -> Key:
        """The sorting key of a request at a moment, in seconds of the clock."""
        ...

    def changes_at(self, request: Request) -> tuple[float, ...]:
        """The moments at which a waiting request's key changes; between them it stays the same."""
        ...


class Queue(Collection[Request], Protocol):
    """Requests that wait. Iterating gives them in no particular order, `ranked` best first."""

    @property
    def best_priority(self) -> int:
        """The lowest `priority` of the requests that wait; only asked while there are any."""
        ...

    def ranked(self, now: float) -> Iterable[Request]:
        """All requests, best first. Time never goes back."""
        ...

    def add(self, request: Request) -> None:
        """Put a request in."""
        ...

    def discard(self, request: Request) -> bool:
        """Take a request out; False when it is not here."""
        ...

    def revise(self, request: Request) -> None:
        """Rank a request anew, since its prediction has changed; does nothing when it is not here."""
        ...

    def serve(self, request: Request) -> None:
        """Take a request out that goes to an executor."""
        ...
