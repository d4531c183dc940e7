"""Deadlines: requests that would miss theirs by their place in another order are moved forward."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from scheduler.request import Request
from scheduler.waiting.orders.aged import Aging
from scheduler.waiting.queue import Order
from scheduler.waiting.sorted_requests import Key

SLACK = 2.0
"""A request is due when this many times its predicted time is left until its deadline: once for the answer, and as long
again to wait for a slot."""


def due_at(request: Request, aging: Aging) -> float:
    """When a waiting request becomes due, in seconds of the clock; infinity where it has no deadline.

    One whose first token has a deadline is due once half of the time until then has passed.
    """
    moments = []
    if request.deadline is not None:
        moments.append(request.deadline - SLACK * aging.seconds(request))
    if request.first_token_by is not None:
        moments.append((request.times.arrival + request.first_token_by) / 2)
    return min(moments, default=inf)


def due_key(request: Request) -> Key:
    """The sorting key of a request that is due: the earliest deadline first."""
    return (request.priority, 0, request.begin_by or 0.0, request.times.arrival, request.row_id)


@dataclass(frozen=True)
class DueFirst(Order):
    """Another order, but requests that are due come before all others of their class, the earliest deadline first.

    Background requests keep the order in which they came: their batch has chosen it, and what it began goes on first.

    A request with a deadline is due from the moment at which no more than SLACK times its predicted time is left. Until
    then it has no advantage, so that a far deadline costs the others nothing. One without a deadline is never due.
    """

    order: Order
    aging: Aging

    def key(self, request: Request, now: float) -> Key:
        if request.in_background:
            return (request.priority, 0, request.times.arrival, request.row_id)
        if request.begin_by is not None and now >= due_at(request, self.aging):
            return due_key(request)
        return (request.priority, 1, *self.order.key(request, now)[1:])

    def changes_at(self, request: Request) -> tuple[float, ...]:
        others = self.order.changes_at(request)
        return others if request.begin_by is None else (due_at(request, self.aging), *others)
