"""Who wants to know how requests and plans end, besides the strategy itself: the journal, and what learns lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.messages import FinishReason
from scheduler.assignment import Assignment, Observer
from scheduler.request import Request


class Ledger(Protocol):
    """Wants to know how requests end."""

    def ended(self, request: Request, reason: FinishReason | None, now: float) -> None:
        """A request has ended, at `request.times.end`; without a reason nobody wanted its answer any more.

        Called on the event loop, once for each request: must neither take long nor raise.
        """
        ...


@dataclass(frozen=True, slots=True)
class Ledgers:
    """Several ledgers as one."""

    each: tuple[Ledger, ...]

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
