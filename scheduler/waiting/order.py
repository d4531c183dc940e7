"""The order of a waiting queue.

`priority` first, lower is earlier; then due requests, earliest deadline first (deadlines.py); then by strategy.
Keys end with the row's number, so none tie. Only predicted lengths are known here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, Protocol

from scheduler.request import Request
from scheduler.waiting.sorted_requests import Ahead, Key


class Order(Protocol):
    """Ranks the requests of one queue. Only `key` is required."""

    by_key: ClassVar[bool] = True  # served least key first, else as `rank` says
    by_entry: ClassVar[bool] = False  # keys hold only after `enter`

    @abstractmethod
    def key(self, request: Request, now: float) -> Key:
        """At a time in seconds of the clock."""
        ...

    def changes_at(self, request: Request) -> tuple[float, ...]:
        """When a waiting request's key changes."""
        return ()

    def enter(self, request: Request) -> None:
        """A request begins to wait."""
        return

    def revise(self, request: Request) -> None:
        """A waiting request has another prediction."""
        self.leave(request)
        self.enter(request)

    def leave(self, request: Request) -> None:
        """A request waits no more."""
        return

    def serve(self, request: Request, in_turn: bool) -> None:
        """A request goes to an executor, before `leave`; `in_turn`: it had the least key."""
        return

    def rank(self, in_turn: Iterable[Request], keys: Mapping[Request, Key], now: float) -> Iterable[Request]:
        """Requests as served, from those by key. A key's second number is 0 for due or background requests, which keep
        their places.
        """
        return in_turn

    def ahead_of_newcomer(self, request: Request, by_key: Ahead, now: float) -> Ahead:
        """Estimate of what is ahead of a newcomer, given what is ahead by key."""
        return by_key

    def passed_by(self, before: Ahead) -> float | None:
        """Tokens of later requests that may still pass a waiting one with `ahead` before it; None if unbounded."""
        return None
