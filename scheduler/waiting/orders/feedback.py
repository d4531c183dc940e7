"""Multi-level feedback without predictions (FastServe's skip-join MLFQ): level i lets a request have 2^i of work, then
it goes a level down; in a level, first come, first served.

A request joins at the level that its prompt fits into, since a shorter one would end before its first token: with a
prompt of work p and levels from j = ceil(log2 p), it is at the first level i >= j with 2^(i+1) - 2^j > attained work.
FastServe promotes what has waited for long; here only deadlines do.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log2

from scheduler.request import Request
from scheduler.waiting.prices import Prices, PricesNow
from scheduler.waiting.queue import Order
from scheduler.waiting.sorted_requests import Key


@dataclass(frozen=True)
class Feedback(Order):
    """The highest level first. A request's key stays the same while it waits; running rows make way by it."""

    prices: PricesNow

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, find_level(request, self.prices()), request.times.arrival, request.row_id)


def find_level(request: Request, prices: Prices) -> int:
    """The level of a request, 0 the highest; the quantum of level 0 is the work of one token of a usual row."""
    prompt = prices.entry + prices.prompt * request.input_length
    joins = ceil(log2(max(1.0, prompt)))
    attained = prices.attained(request) if request.generated else 0.0
    return max(joins, floor(log2(attained + 2**joins)))
