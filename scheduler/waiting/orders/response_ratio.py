"""Highest response ratio next, of single requests: (waited + work) / work, the greatest first (Brinch Hansen 1971).

The work is what is predicted, or only what is to be read of the prompt, which needs no prediction (SGLang's `hrrn`). No
request starves: its ratio grows without end. Ratios change all the time, so requests are sorted when asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from scheduler.request import Request
from scheduler.waiting.queue import Order
from scheduler.waiting.sorted_requests import Key

LEAST_WORK = 1e-9  # that a request counts for, so that none divides by zero


@dataclass(frozen=True)
class ResponseRatio(Order):
    """The highest ratio of this moment first."""

    by_key = False
    work: Callable[[Request], float]
    """Work of a request, in any unit."""

    def key(self, request: Request, now: float) -> Key:
        ratio = (now - request.times.arrival) / max(LEAST_WORK, self.work(request))
        return (request.priority, -ratio, request.times.arrival, request.row_id)

    def rank(self, in_turn: Iterable[Request], keys: Mapping[Request, Key], now: float) -> Iterable[Request]:
        def key(request: Request) -> Key:
            known = keys[request]
            return (*known[:2], *self.key(request, now)[1:]) if known[1] else known

        return sorted(in_turn, key=key)
