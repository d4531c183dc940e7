"""First come, first served."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.request import Request
from scheduler.waiting.queue import Order
from scheduler.waiting.sorted_requests import Ahead, Key


@dataclass(frozen=True)
class Fcfs(Order):
    """First come, first served, of one `priority`."""

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, request.times.arrival, request.row_id)

    def passed_by(self, before: Ahead) -> float:
        return 0.0
