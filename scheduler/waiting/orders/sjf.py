"""Shortest job first, by predicted lengths (SSJF, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from scheduler.remaining_length import remaining_length
from scheduler.request import Request
from scheduler.waiting.queue import Order
from scheduler.waiting.sorted_requests import Key


def remaining_tokens(request: Request) -> int:
    """Predicted tokens still to come, in whole ones, so that nearly equal requests keep their order of arrival."""
    return ceil(remaining_length(request))


@dataclass(frozen=True)
class Sjf(Order):
    """The request with the fewest predicted tokens still to come first.

    Without a prediction, an answer counts as long as it may become. While short requests keep coming, a long one may
    wait for ever.
    """

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, remaining_tokens(request), request.times.arrival, request.row_id)
