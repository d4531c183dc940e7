"""Orders: `priority`, then due requests (deadlines.py), then the strategy's; keys end with the row, so none tie."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from scheduler.request import Request
from scheduler.waiting.sorted_requests import Key, QueueAhead


class Order(Protocol):
    """Only `key` is required."""

    by_key: ClassVar[bool] = True  # else by `rank`
    by_entry: ClassVar[bool] = False
    share: float = 0.0  # of work that jumps
    keeps: bool = False  # promises

    @abstractmethod
    def key(self, request: Request, now: float) -> Key:
        """In the clock's seconds."""
        ...

    def changes_at(self, request: Request) -> tuple[float, ...]:
        return ()

    def enter(self, request: Request) -> None:
        return

    def revise(self, request: Request) -> None:
        self.leave(request)
        self.enter(request)

    def leave(self, request: Request) -> None:
        return

    def lends(self, first: Request, request: Request) -> bool:
        """Before `serve`: the least key's place, for its own."""
        return False

    def serve(self, request: Request, in_turn: bool) -> None:
        """Before `leave`; `in_turn`: least key."""
        return

    def ended(self, request: Request) -> None:
        return

    def rank(self, in_turn: Iterable[Request], keys: Mapping[Request, Key], now: float) -> Iterable[Request]:
        """From key order; due and background requests (second number 0) stay."""
        return in_turn

    def ahead_of_newcomer(self, request: Request, by_key: QueueAhead, now: float) -> QueueAhead:
        """By what is ahead by key."""
        return by_key

    def ahead_of_asked(self, request: Request) -> QueueAhead | None:
        """If it goes first for a promise; None if it may not."""
        return None

    def passed_by(self, before: QueueAhead) -> float | None:
        """Later work that may pass, except better priorities and due ones; None if unbounded."""
        return None


@dataclass(frozen=True)
class ByScore(Order):
    """Least first, then by arrival."""

    score: Callable[[Request], float]

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, self.score(request), request.times.arrival, request.row_id)
