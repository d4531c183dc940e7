"""Orders by arrival and by predicted length: first come, first served; shortest job first, and with aging (SSJF,
section 3.2); published orders by the length's distribution (Gittins, TIE) and by its rank (vLLM-LTR).
"""

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
from scheduler.waiting.prices import PricesNow
from scheduler.waiting.queue import Ahead, Key, Order


@dataclass(frozen=True)
class Arrived(Order):
    """By arrival, of one `priority`: about the places of requests where batches are arranged of them."""

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, request.times.arrival, request.row_id)


@dataclass(frozen=True)
class Fcfs(Arrived):
    """First come, first served, of one `priority`."""

    def passed_by(self, before: Ahead) -> float:
        return 0.0


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


MOST_SECONDS = 100.0  # that the oldest request waits for before all go by arrival, whatever is predicted of it


@dataclass(frozen=True, slots=True)
class Aging:
    """When requests have waited for too long, by their predicted times."""

    factor: float = Scheduling.aging_factor
    """Times its own predicted time that the oldest request waits for, until all go by arrival; 0: whatever it waits."""
    seconds_per_token: float = 0.02
    """K of SSJF's linear model of a request's time, T = C + K·tokens (section 2): the seconds of one decode iteration.
    Both defaults are those of the authors' simulator."""

    def __post_init__(self) -> None:
        if self.factor < 0 or self.seconds_per_token < 0:
            raise ValueError(f"the aging factor and the seconds of a token must not be negative: {self}")

    def seconds(self, request: Request) -> float:
        """The predicted seconds of what a request has still to generate."""
        return remaining_tokens(request) * self.seconds_per_token


@dataclass(frozen=True)
class AgedSjf(Sjf):
    """Shortest predicted job first, as SSJF's authors have it in their simulator.

    Only the request that has waited longest is looked at. Once it has waited for more than `factor` times its own
    predicted time, or for more than MOST_SECONDS, all go by arrival, until the one that has then waited longest has
    not. A factor of 0 turns this off. Classes of `priority` come before all this.

    The bound. Let a request with predicted time P arrive at time t on an executor that serves one request at a time,
    and let V be the seconds of the requests that wait at t. Those that came before it leave first, or are the oldest
    that starve; from min(factor·P, MOST_SECONDS) after t on, it is the oldest as soon as these have gone, and goes
    next. A short one passes it only while none that is older starves.
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
