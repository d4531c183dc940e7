"""Orders by arrival and predicted length."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from math import ceil, inf, log

import numpy as np

from scheduler.options import Scheduling
from scheduler.remaining_length import remaining_length
from scheduler.request import Request
from scheduler.serving_time.bilinear import FloatArray
from scheduler.waiting.order import Order
from scheduler.waiting.prices import Prices
from scheduler.waiting.sorted_requests import Key, QueueAhead


@dataclass(frozen=True)
class Arrived(Order):
    def key(self, request: Request, now: float) -> Key:
        return (request.priority, request.times.arrival, request.row_id)


@dataclass(frozen=True)
class Fcfs(Arrived):
    def passed_by(self, before: QueueAhead) -> float:
        return 0.0


def remaining_tokens(request: Request) -> int:
    """Whole, so that near ties keep arrival order."""
    return ceil(remaining_length(request))


@dataclass(frozen=True)
class Sjf(Order):
    """Shortest predicted; else as allowed. Long requests may starve."""

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, remaining_tokens(request), request.times.arrival, request.row_id)


MOST_SECONDS = 100.0  # wait from which arrival order holds


@dataclass(frozen=True, slots=True)
class Aging:
    # wait / predicted time for that; 0: never
    factor: float = Scheduling.aging_factor
    # K of T = C + K·tokens (SSJF, 2); the authors' default
    seconds_per_token: float = 0.02

    def seconds(self, request: Request) -> float:
        return remaining_tokens(request) * self.seconds_per_token


@dataclass(frozen=True)
class AgedSjf(Sjf):
    """SSJF with aging, as in the authors' simulator: once the oldest has waited `factor` times its predicted time P,
    or MOST_SECONDS, all go by arrival.

        Bound, on a serial executor: from min(factor·P, MOST_SECONDS) on, it is next after earlier arrivals.
    """

    by_key = False
    aging: Aging

    def rank(self, in_turn: Iterable[Request], keys: Mapping[Request, Key], now: float) -> Iterator[Request]:
        for (_, ranked), group in groupby(in_turn, key=lambda one: keys[one][:2]):
            requests = list(group)
            if ranked and (factor := self.aging.factor) > 0:
                oldest = min(requests, key=_arrival)
                if now - oldest.times.arrival > min(factor * self.aging.seconds(oldest), MOST_SECONDS):
                    requests.sort(key=_arrival)
            yield from requests


def _arrival(request: Request) -> Key:
    return (request.times.arrival, request.row_id)


def _remaining(request: Request) -> tuple[FloatArray, FloatArray] | None:
    known = request.distribution
    if known is None:
        return None
    lengths = request.correction * known.lengths
    beyond = lengths > request.generated
    if not beyond.any():
        return None
    left = np.minimum(lengths[beyond], request.sampling.max_tokens) - request.generated
    return left.astype(np.float64), known.weights[beyond].astype(np.float64)


def gittins_rank(request: Request, prices: Prices) -> float:
    """Gittins (1979; SageSched for LLMs), constant while waiting:

        rank(a) = min over Δ of E[min(W - a, Δ) | W > a] / P(W - a <= Δ | W > a)

    for work W with a done; without a distribution, the work left.
    """
    known = _remaining(request)
    if known is None:
        return prices.work(request)
    left, weights = known
    work = prices.work_left(request, left)
    ended = np.cumsum(weights)
    spent = np.cumsum(weights * work) + (ended[-1] - ended) * work
    return float((spent / ended).min())


BETA = 0.3
TAIL = 0.9
DECAY = log(1 / 0.9) / 30  # 1/s


def inflated_score(request: Request) -> float:
    """TIE ("Scheduling LLM Inference with Uncertainty-Aware Output Length Predictions", ICML 2026):

        score = (E[G] + β·E[G | G >= q]) · 0.9^(waited / 30 s),    q: the quantile 0.9 of G, G at most `max_tokens`

    with the predictor's G and a fixed β, unlike the paper; order is constant while waiting.
    """
    return log(inflated_length(request)) + DECAY * request.times.arrival


def inflated_length(request: Request) -> float:
    """Without a distribution both terms are the remaining length."""
    known = _remaining(request)
    if known is None:
        return (1 + BETA) * remaining_length(request)
    left, weights = known
    tail = np.cumsum(weights) >= TAIL * weights.sum() - 1e-6
    return max(1.0, float(np.average(left, weights=weights) + BETA * np.average(left[tail], weights=weights[tail])))


IDLE_STEPS = 200  # `starv200`: the authors' starvation threshold in steps


@dataclass(frozen=True)
class ByRank(Order):
    """vLLM-LTR (NeurIPS 2024, 2408.15792, algorithm 1): a ranking proxy's order, with a slice's promotion after
    IDLE_STEPS for each slot got, plus one.
    """

    aging: Aging

    def key(self, request: Request, now: float) -> Key:
        length = inf if request.predicted_length is None else request.predicted_length
        starves = now >= self._promoted_at(request)
        return (request.priority, 0 if starves else 1, length, request.times.arrival, request.row_id)

    def changes_at(self, request: Request) -> tuple[float, ...]:
        return (self._promoted_at(request),)

    def _promoted_at(self, request: Request) -> float:
        return request.times.arrival + (request.runs + 1) * IDLE_STEPS * self.aging.seconds_per_token
