"""Why a request waits: what goes before it and for which reason, and for how long newcomers may still go before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from scheduler.request import Request


class Reason(StrEnum):
    """Why one request goes before another."""

    PRIORITY = "better_priority"
    ARRIVAL = "came_earlier"
    RULE = "put_first"
    """The one ahead came later, and the strategy's order or its deadline puts it first."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request waits: the requests before it, and for how long newcomers may still pass it."""

    strategy: str
    count: int
    """How many requests are before it; about as many, where they are more than `ahead` has."""
    ahead: Sequence[Request]
    """The requests before it, the next to start first: the front of the queue at most."""
    reasons: Counter[Reason]
    """How many of these there are of each reason."""
    passed_for: float | None
    """Seconds at full load for which requests that come from now on, of no better priority and not due by a deadline,
    may go before it; 0 where none does, None where the order has no such bound."""


def find_reason(ahead: Request, request: Request) -> Reason:
    """Why a request is ahead of another."""
    if ahead.priority < request.priority:
        return Reason.PRIORITY
    earlier = (ahead.times.arrival, ahead.row_id) < (request.times.arrival, request.row_id)
    return Reason.ARRIVAL if earlier else Reason.RULE
