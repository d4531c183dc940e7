"""Shortest job first by the mean length with its tail added, so that what may become long is not taken for short (TIE,
"Scheduling LLM Inference with Uncertainty-Aware Output Length Predictions", ICML 2026).

    score = (E[G] + β·E[G | G >= q]) · 0.9^(waited / 30 s),    q: the quantile 0.9 of G, G at most `max_tokens`

The paper takes G to be log-t and lets β go from 0.1 to 0.5 with the queue; here G is as the predictor tells it, and β
is fixed, which by its ablation costs some percent.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np

from scheduler.remaining_length import remaining_length
from scheduler.request import Request
from scheduler.waiting.queue import Order
from scheduler.waiting.sorted_requests import Key

BETA = 0.3
TAIL = 0.9
DECAY = log(1 / 0.9) / 30
"""The rate in 1/s at which the score of a request that waits falls."""


@dataclass(frozen=True)
class TailInflated(Order):
    """The least score first. As all scores fall at one rate, a request's key stays the same while it waits."""

    def key(self, request: Request, now: float) -> Key:
        arrival = request.times.arrival
        return (request.priority, log(inflated_length(request)) + DECAY * arrival, arrival, request.row_id)


def inflated_length(request: Request) -> float:
    """E[G] + β·E[G | G >= q] of what is left, in tokens; without a distribution both are the remaining length."""
    known = request.distribution
    lengths = None if known is None else request.correction * known.lengths
    beyond = None if lengths is None else lengths > request.generated
    if known is None or lengths is None or beyond is None or not beyond.any():
        return (1 + BETA) * remaining_length(request)
    left = np.minimum(lengths[beyond], request.sampling.max_tokens) - request.generated
    weights = known.weights[beyond].astype(np.float64)
    tail = np.cumsum(weights) >= TAIL * weights.sum() - 1e-6
    return max(1.0, float(np.average(left, weights=weights) + BETA * np.average(left[tail], weights=weights[tail])))
