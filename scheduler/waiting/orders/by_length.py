"""Published orders by what is predicted of a length: its distribution (Gittins, TIE), or its rank (vLLM-LTR)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log

import numpy as np

from scheduler.remaining_length import remaining_length
from scheduler.request import Request
from scheduler.serving_time.bilinear import FloatArray
from scheduler.waiting.orders.sjf import Aging
from scheduler.waiting.prices import PricesNow
from scheduler.waiting.queue import Order
from scheduler.waiting.sorted_requests import Key


def _remaining(request: Request) -> tuple[FloatArray, FloatArray] | None:
    """The lengths in tokens that may still come, ascending, and their weights; None where no distribution has any."""
    known = request.distribution
    if known is None:
        return None
    lengths = request.correction * known.lengths
    beyond = lengths > request.generated
    if not beyond.any():
        return None
    left = np.minimum(lengths[beyond], request.sampling.max_tokens) - request.generated
    return left.astype(np.float64), known.weights[beyond].astype(np.float64)


@dataclass(frozen=True)
class Gittins(Order):
    """Gittins' order: the request whose chance of ending soon, for the work that it takes to find out, is best goes
    first.

        rank(a) = min over Δ of E[min(W - a, Δ) | W > a] / P(W - a <= Δ | W > a)

    where W is a request's work and a what it has had; the least rank is served first (Gittins 1979; SageSched serves
    LLM requests so). It needs the distribution of a request's length. Where only a length is known, this is the work
    left.

    A request's key stays the same while it waits.
    """

    prices: PricesNow

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, self._rank(request), request.times.arrival, request.row_id)

    def _rank(self, request: Request) -> float:
        known = _remaining(request)
        if known is None:
            return self.prices().work(request)
        left, weights = known
        work = self.prices().work_left(request, left)
        ended = np.cumsum(weights)
        spent = np.cumsum(weights * work) + (ended[-1] - ended) * work
        return float((spent / ended).min())


BETA = 0.3
TAIL = 0.9
DECAY = log(1 / 0.9) / 30
"""The rate in 1/s at which the score of a request that waits falls."""


@dataclass(frozen=True)
class TailInflated(Order):
    """Shortest job first by the mean length with its tail added, so that what may become long is not taken for short
    (TIE, "Scheduling LLM Inference with Uncertainty-Aware Output Length Predictions", ICML 2026).

        score = (E[G] + β·E[G | G >= q]) · 0.9^(waited / 30 s),    q: the quantile 0.9 of G, G at most `max_tokens`

    The paper takes G to be log-t and lets β go from 0.1 to 0.5 with the queue; here G is as the predictor tells it, and
    β is fixed, which by its ablation costs some percent.

    As all scores fall at one rate, a request's key stays the same while it waits.
    """

    def key(self, request: Request, now: float) -> Key:
        arrival = request.times.arrival
        return (request.priority, log(inflated_length(request)) + DECAY * arrival, arrival, request.row_id)


def inflated_length(request: Request) -> float:
    """E[G] + β·E[G | G >= q] of what is left, in tokens; without a distribution both are the remaining length."""
    known = _remaining(request)
    if known is None:
        return (1 + BETA) * remaining_length(request)
    left, weights = known
    tail = np.cumsum(weights) >= TAIL * weights.sum() - 1e-6
    return max(1.0, float(np.average(left, weights=weights) + BETA * np.average(left[tail], weights=weights[tail])))


IDLE_STEPS = 200
"""The starvation threshold of the authors' experiments (`starv200` in their scripts), in steps of the scheduler."""


@dataclass(frozen=True)
class ByRank(Order):
    """Least predicted rank first, running rows included, and a turn for what starves (vLLM-LTR: Fu et al., "Efficient
    LLM Scheduling by Learning to Rank", NeurIPS 2024, 2408.15792, algorithm 1 and "Starvation Prevention").

    The rank is what a proxy says that was trained with a ranking loss (`lengthwise train --predictor proxy --task
    ranking`): lengths in the order of its scores. It stays the same while tokens come, so this is the shortest job
    first and not the shortest remainder.

    The paper counts a request's idle steps, promotes it at so many, and takes that back when it has run for a quantum.
    Here a request is promoted once it has been in the system for IDLE_STEPS iterations for each time that it was given
    to an executor, and once more; what is given a slot has it for a slice, which is the quantum.

    Promoted requests first, then by predicted length; without a prediction, last.
    """

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
