"""First come, first served."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.request import Request
from scheduler.waiting.queue import Key


@dataclass(frozen=True, slots=True)
class Fcfs:
    """First come, first served, of one `priority`."""

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, request.times.arrival, request.row_id)

    def changes_at(self, request: Request) -> tuple[float, ...]:
        return ()
