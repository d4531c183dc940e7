"""Orders by arrival and predicted length: FCFS, SJF, aged SJF (SSJF, 3.2), Gittins, TIE, and vLLM-LTR."""

from __future__ import annotations

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
from scheduler.waiting.prices import PricesNow
from scheduler.waiting.sorted_requests import Ahead, Key


@dataclass(frozen=True)
class Arrived(Order):
    """By arrival within a `priority`: approximate places where requests are arranged in batches."""

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, request.times.arrival, request.row_id)


@dataclass(frozen=True)
class Fcfs(Arrived):
    """First come, first served."""

    def passed_by(self, before: Ahead) -> float:
        return 0.0


def remaining_tokens(request: Request) -> int:
    """Predicted tokens to come, whole, so that near ties keep their order of arrival."""
    return ceil(remaining_length(request))


@dataclass(frozen=True)
class Sjf(Order):
    """Fewest predicted tokens to come first; without a prediction, as many as allowed. Long requests may starve."""

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, remaining_tokens(request), request.times.arrival, request.row_id)


MOST_SECONDS = 100.0  # the oldest request's wait after which all go by arrival


@dataclass(frozen=True, slots=True)
class Aging:
    # the oldest waits this many times its predicted time until all go by arrival; 0: never
    factor: float = Scheduling.aging_factor
    # K of T = C + K·tokens (SSJF, 2), seconds of a decode step; the authors' default, as is the factor
    seconds_per_token: float = 0.02

    def __post_init__(self) -> None:
        if self.factor < 0 or self.seconds_per_token < 0:
            raise ValueError(f"the aging factor and the seconds of a token must not be negative: {self}")

    def seconds(self, request: Request) -> float:
        """Predicted seconds of what a request still generates."""
        return remaining_tokens(request) * self.seconds_per_token


@dataclass(frozen=True)
class AgedSjf(Sjf):
    """Shortest predicted job first with aging, as in the SSJF authors' simulator.

    Once the longest-waiting request has waited for `factor` times its own predicted time, or MOST_SECONDS, all go by
    arrival until the then oldest has not. A factor of 0 disables this.

    Bound: let a request of predicted time P arrive at t on an executor that serves one at a time. From min(factor·P,
    MOST_SECONDS) after t on it goes next once earlier arrivals have gone; short ones pass it only while none older
    starves.
    """

    by_key = False
    aging: Aging

    def rank(self, in_turn: Iterable[Request], keys: Mapping[Request, Key], now: float) -> Iterator[Request]:
        for (_, ranked), group in groupby(in_turn, key=lambda one: keys[one][:2]):
            requests = list(group)
            if ranked and self._starves(min(requests, key=_arrival), now):
                requests.sort(key=_arrival)
            yield from requests

    def _starves(self, oldest: Request, now: float) -> bool:
        factor, waited = self.aging.factor, now - oldest.times.arrival
        return factor > 0 and (waited > factor * self.aging.seconds(oldest) or waited > MOST_SECONDS)


def _arrival(request: Request) -> Key:
    return (request.times.arrival, request.row_id)


def _remaining(request: Request) -> tuple[FloatArray, FloatArray] | None:
    """Lengths that may still come, ascending, and their weights; None without a distribution."""
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
    """Gittins' order (1979; SageSched for LLMs): the best chance of ending soon for the work to find out.

        rank(a) = min over Δ of E[min(W - a, Δ) | W > a] / P(W - a <= Δ | W > a)

    W is a request's work, a what it has had; the least rank first. Without a distribution this is the work left. Keys
    are constant while waiting.
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
DECAY = log(1 / 0.9) / 30  # 1/s at which a waiting request's score decays


@dataclass(frozen=True)
class TailInflated(Order):
    """Shortest mean length first, with its tail added (TIE, "Scheduling LLM Inference with Uncertainty-Aware Output
    Length Predictions", ICML 2026).

        score = (E[G] + β·E[G | G >= q]) · 0.9^(waited / 30 s),    q: the quantile 0.9 of G, G at most `max_tokens`

    The paper takes a log-t G and β from 0.1 to 0.5 with the queue; here G is the predictor's and β fixed, which costs
    some percent by its ablation. Scores decay at one rate, so keys are constant while waiting.
    """

    def key(self, request: Request, now: float) -> Key:
        arrival = request.times.arrival
        return (request.priority, log(inflated_length(request)) + DECAY * arrival, arrival, request.row_id)


def inflated_length(request: Request) -> float:
    """Tokens; without a distribution both terms are the remaining length."""
    known = _remaining(request)
    if known is None:
        return (1 + BETA) * remaining_length(request)
    left, weights = known
    tail = np.cumsum(weights) >= TAIL * weights.sum() - 1e-6
    return max(1.0, float(np.average(left, weights=weights) + BETA * np.average(left[tail], weights=weights[tail])))


IDLE_STEPS = 200  # starvation threshold of the authors' experiments (`starv200`), in scheduler steps


@dataclass(frozen=True)
class ByRank(Order):
    """Least predicted rank first, running rows included, with a turn for what starves (vLLM-LTR, NeurIPS 2024,
    2408.15792, algorithm 1 and "Starvation Prevention").

    The rank is a proxy's, trained with a ranking loss (`lengthwise train --predictor proxy --task ranking`), and
    constant as tokens come. The paper promotes a request after idle steps for a quantum; here after IDLE_STEPS
    iterations in the system for each time it got a slot, plus one, and the quantum is a slice.
    """

    aging: Aging  # seconds of a step

    def key(self, request: Request, now: float) -> Key:
        length = inf if request.predicted_length is None else request.predicted_length
        starves = now >= self._promoted_at(request)
        return (request.priority, 0 if starves else 1, length, request.times.arrival, request.row_id)

    def changes_at(self, request: Request) -> tuple[float, ...]:
        return (self._promoted_at(request),)

    def _promoted_at(self, request: Request) -> float:
        return request.times.arrival + (request.runs + 1) * IDLE_STEPS * self.aging.seconds_per_token
