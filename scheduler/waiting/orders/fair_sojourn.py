"""Fair sojourn protocol: in the order in which requests would end if all that wait shared the device (Friedman and
Henderson, "Fairness and efficiency in web server protocols", SIGMETRICS 2003), by predicted work.

V, the work that each request has had in that sharing, grows by w / n as work w is taken while n share. A request of
work w that comes at V ends at V + w: its key, for good. A small one passes large ones that came late enough before it.
"""

from __future__ import annotations

from heapq import heappop, heappush

from scheduler.remaining_length import work_left
from scheduler.request import Request
from scheduler.waiting.queue import Order
from scheduler.waiting.sorted_requests import Key


class FairSojourn(Order):
    """The first to end under sharing first."""

    by_entry = True

    def __init__(self) -> None:
        self._level = 0.0  # V
        self._ends: dict[Request, float] = {}
        self._sharing: list[float] = []  # a heap of the ends that V has not reached

    def key(self, request: Request, now: float) -> Key:
        end = self._ends.get(request)
        return (
            request.priority,
            self._level + work_left(request) if end is None else end,
            request.times.arrival,
            request.row_id,
        )

    def enter(self, request: Request) -> None:
        self._ends[request] = self._level + work_left(request)
        heappush(self._sharing, self._ends[request])

    def leave(self, request: Request) -> None:
        del self._ends[request]

    def serve(self, request: Request, in_turn: bool) -> None:
        work = work_left(request)
        while work > 0 and self._sharing:
            step = min(work, (self._sharing[0] - self._level) * len(self._sharing))
            self._level, work = self._level + step / len(self._sharing), work - step
            if work > 0:
                self._level = max(self._level, heappop(self._sharing))
