"""Least predicted rank first, running rows included, and a turn for what starves (vLLM-LTR: Fu et al., "Efficient LLM
Scheduling by Learning to Rank", NeurIPS 2024, 2408.15792, algorithm 1 and "Starvation Prevention").

The rank is what a proxy says that was trained with a ranking loss (`lengthwise train --predictor proxy --task
ranking`): lengths in the order of its scores. It stays the same while tokens come, so this is the shortest job first
and not the shortest remainder.

The paper counts a request's idle steps, promotes it at so many, and takes that back when it has run for a quantum. Here
a request is promoted once it has been in the system for IDLE_STEPS iterations for each time that it was given to an
executor, and once more; what is given a slot has it for a slice, which is the quantum.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from scheduler.request import Request
from scheduler.waiting.orders.aged import Aging
from scheduler.waiting.queue import Order
from scheduler.waiting.sorted_requests import Key

IDLE_STEPS = 200
"""The starvation threshold of the authors' experiments (`starv200` in their scripts), in steps of the scheduler."""


@dataclass(frozen=True)
class ByRank(Order):
    """Promoted requests first, then by predicted length; without a prediction, last."""

    aging: Aging
    """Seconds of a step."""

    def key(self, request: Request, now: float) -> Key:
        length = inf if request.predicted_length is None else request.predicted_length
        starves = now >= self._promoted_at(request)
        return (request.priority, 0 if starves else 1, length, request.times.arrival, request.row_id)

    def changes_at(self, request: Request) -> tuple[float, ...]:
        return (self._promoted_at(request),)

    def _promoted_at(self, request: Request) -> float:
        return request.times.arrival + (request.runs + 1) * IDLE_STEPS * self.aging.seconds_per_token
