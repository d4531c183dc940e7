"""Observers of requests and plans, on the event loop: fast, without raising."""

from typing import Protocol

from engine.messages import FinishReason
from scheduler.plan import Assignment
from scheduler.request import Request


class RequestObserver(Protocol):
    def on_first_token(self, request: Request, now: float) -> None: ...

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        """Once; no reason if cancelled."""


class PlanObserver(Protocol):
    def on_finish(self, assignment: Assignment, now: float) -> None: ...
