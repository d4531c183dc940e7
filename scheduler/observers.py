"""Observers of how requests and plans end: the journal, metrics, and learning of lengths and serving times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.messages import FinishReason
from scheduler.plan import Assignment
from scheduler.request import Request


class RequestObserver(Protocol):
    """Is told of first tokens and of requests that end, on the event loop; must neither take long nor raise."""

    def on_first_token(self, request: Request, now: float) -> None:
        """The first token of an answer goes out, at `request.times.first_token`."""
        ...

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        """A request has ended, at `request.times.end`; the reason is None where it was cancelled. Called once each."""
        ...


class PlanObserver(Protocol):
    """Is told of plans that are over, on the event loop; must not take long."""

    def on_finish(self, assignment: Assignment, now: float) -> None:
        """An assignment is over, at `assignment.ended`."""
        ...


@dataclass(frozen=True, slots=True)
class RequestObservers:
    """Several request observers as one."""

    each: tuple[RequestObserver, ...]

    def on_first_token(self, request: Request, now: float) -> None:
        for observer in self.each:
            observer.on_first_token(request, now)

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        for observer in self.each:
            observer.on_end(request, reason, now)


@dataclass(frozen=True, slots=True)
class PlanObservers:
    """Several plan observers as one."""

    each: tuple[PlanObserver, ...]

    def on_finish(self, assignment: Assignment, now: float) -> None:
        for observer in self.each:
            observer.on_finish(assignment, now)
