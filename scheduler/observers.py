"""Observers of how requests and plans end: the journal, metrics, and learning of lengths and serving times."""

from __future__ import annotations

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
