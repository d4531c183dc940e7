"""Deadlines: requests that would miss theirs by their place in another order are moved forward."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from scheduler.request import Request
from scheduler.waiting.aged import Aging
from scheduler.waiting.queue import Key, Order

SLACK = 2.0
"""A request is due when this many times its predicted time is left until its deadline: once for the answer, and as long
again to wait for a slot."""


def due_at(request: Request, aging: Aging) -> float:
    """When a waiting request becomes due, in seconds of the clock; infinity where it has no deadline."""
    return inf if request.deadline is None else request.deadline - SLACK * aging.seconds(request)


@dataclass(frozen=True, slots=True)
class DueFirst:
    """Another order, but requests that are due come before all others of their class, the earliest deadline first.

    A request with a deadline is due from the moment at which no more than SLACK times its predicted time is left. Until
    then it has no advantage, so that a far deadline costs the others nothing. One without a deadline is never due.
    """

    order: Order
    aging: Aging

    def key(self, request: Request, now: float) -> Key:
        if request.deadline is not None and now >= due_at(request, self.aging):
            return (request.priority, 0, request.deadline, request.times.arrival, request.row_id)
        return (request.priority, 1, *self.order.key(request, now)[1:])

    def changes_at(self, request: Request) -> tuple[float, ...]:
        others = self.order.changes_at(request)
        return others if request.deadline is None else (due_at(request, self.aging), *others)
