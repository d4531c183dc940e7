"""What the journal, metrics and learning implement to hear how requests and plans end."""

from __future__ import annotations

from typing import Protocol

from engine.messages import FinishReason
from scheduler.plan import Assignment
from scheduler.request import Request


class RequestObserver(Protocol):
    """Called on the event loop; must neither take long nor raise."""

    def on_first_token(self, request: Request, now: float) -> None:
        """At `request.times.first_token`."""

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        """At `request.times.end`, once; the reason is None when cancelled."""


class PlanObserver(Protocol):
    """Called on the event loop; must not take long."""

    def on_finish(self, assignment: Assignment, now: float) -> None:
        """At `assignment.ended`."""
