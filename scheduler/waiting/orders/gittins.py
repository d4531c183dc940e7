"""Gittins' order: the request whose chance of ending soon, for the work that it takes to find out, is best goes first.

    rank(a) = min over Δ of E[min(W - a, Δ) | W > a] / P(W - a <= Δ | W > a)

where W is a request's work and a what it has had; the least rank is served first (Gittins 1979; SageSched serves LLM
requests so). It needs the distribution of a request's length. Where only a length is known, this is the work left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.request import Request
from scheduler.waiting.prices import PricesNow
from scheduler.waiting.queue import Order
from scheduler.waiting.sorted_requests import Key


@dataclass(frozen=True)
class Gittins(Order):
    """The least rank first. A request's key stays the same while it waits."""

    prices: PricesNow

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, self._rank(request), request.times.arrival, request.row_id)

    def _rank(self, request: Request) -> float:
        known = request.distribution
        lengths = None if known is None else request.correction * known.lengths
        beyond = None if lengths is None else lengths > request.generated
        if known is None or lengths is None or beyond is None or not beyond.any():
            return self.prices().work(request)
        weights = known.weights[beyond].astype(np.float64)
        left = np.minimum(lengths[beyond], request.sampling.max_tokens) - request.generated
        work = self.prices().work_left(request, left.astype(np.float64))
        ended = np.cumsum(weights)
        spent = np.cumsum(weights * work) + (ended[-1] - ended) * work
        return float((spent / ended).min())
