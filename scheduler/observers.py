"""Who wants to know how requests go and plans end, besides the strategy: the journal, metrics, what learns lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.messages import FinishReason
from scheduler.assignment import Assignment, Observer
from scheduler.request import Request


class Ledger(Protocol):
    """Wants to know when answers begin and how requests end."""

    def first_token(self, request: Request, now: float) -> None:
        """The first token of an answer goes out, at `request.times.first_token`. Must neither take long nor raise."""
        ...

    def ended(self, request: Request, reason: FinishReason | None, now: float) -> None:
        """A request has ended, at `request.times.end`; without a reason nobody wanted its answer any more.

        Called on the event loop, once for each request: must neither take long nor raise.
        """
        ...


@dataclass(frozen=True, slots=True)
class Ledgers:
    """Several ledgers as one."""

    each: tuple[Ledger, ...]

    def first_token(self, request: Request, now: float) -> None:
        for ledger in self.each:
            ledger.first_token(request, now)

    def ended(self, request: Request, reason: FinishReason | None, now: float) -> None:
        for ledger in self.each:
            ledger.ended(request, reason, now)


@dataclass(frozen=True, slots=True)
class Observers:
    """Several observers as one."""

    each: tuple[Observer, ...]

    def finished(self, assignment: Assignment, now: float) -> None:
        for observer in self.each:
            observer.finished(assignment, now)
