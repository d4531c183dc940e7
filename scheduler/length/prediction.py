"""Predicted lengths of answers, where they come from, what a predictor can do, and how good a prediction was.

It knows neither how lengths are predicted nor which requests wait for them. The oracle tells lengths that replayed
requests bring along (design 3.1); no other part of the scheduler looks at these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from engine.messages import FinishReason
from engine.sampling.params import SamplingParams
from scheduler.length.distribution import TAILS, LengthDistribution
from scheduler.length.features import LengthQuery
from scheduler.request import Request


class Source(StrEnum):
    """Where a predicted length comes from."""

    OWN = "own-embeddings"
    FOREST = "forest"
    PROXY = "proxy"
    CACHE = "cache"
    """The answer to a near-duplicate that came before."""
    HISTORY = "history"
    """A quantile of the answers that ended lately."""
    MAX_TOKENS = "max_tokens"
    """The longest that the answer may become, where nothing else is known."""
    ORACLE = "oracle"
    """The length that the request brought along (design 3.1)."""


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """A predictor's answer for one request."""

    features: tuple[float, ...]
    """The numbers that it was predicted from, for the journal, which learning reads."""
    distribution: LengthDistribution | None
    """How likely each length is; None as long as there is no forest."""
    source: Source = Source.FOREST
    """Where the distribution comes from."""


Answer: TypeAlias = "asyncio.Future[Estimate | None]"
"""The estimate to come; None where the predictor failed."""


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """G'(p) in tokens, the end token included, and where it comes from."""

    length: float
    source: Source
    features: tuple[float, ...] = ()
    """The numbers that it was predicted from; empty where the predictor did not answer in time."""
    distribution: LengthDistribution | None = None
    late: Answer | None = None
    """Where the estimate that did not come in time may come yet."""

    def forget(self) -> None:
        """Cancel the estimate that has not come in time."""
        if self.late is not None:
            self.late.cancel()

    @property
    def features_by_now(self) -> tuple[float, ...]:
        """The features, or those that came too late: they are still good to learn from."""
        if self.late is None or not self.late.done() or self.late.cancelled():
            return self.features
        estimate = self.late.result()
        return self.features if estimate is None else estimate.features


def prediction_of(query: LengthQuery, estimate: Estimate) -> Prediction | None:
    """The prediction that an estimate means for a request; None where it has no distribution."""
    if estimate.distribution is None:
        return None
    length = min(max(1.0, estimate.distribution.mean), query.max_tokens)
    return Prediction(length, estimate.source, estimate.features, estimate.distribution)


class LengthPredictor(Protocol):
    """Predicts a batch at a time; may raise anything."""

    async def estimate(self, queries: Sequence[LengthQuery]) -> Sequence[Estimate]:
        """One estimate for each query, in order."""
        ...


class NoReplay(ValueError):
    """The oracle was asked for the length of a request that did not bring it."""


def oracle(sampling: SamplingParams) -> Prediction:
    """The length that will be generated; raises NoReplay where the request does not say it."""
    if sampling.replay_tokens is None:
        raise NoReplay(
            "this strategy needs to know each answer's length: send replay_tokens, with --allow-replay, "
            "or choose another --strategy"
        )
    return Prediction(min(sampling.replay_tokens, sampling.max_tokens), Source.ORACLE)


def is_replayed(sampling: SamplingParams) -> bool:
    """Whether a request brings its length along."""
    return sampling.replay_tokens is not None


def true_length(sampling: SamplingParams) -> float:
    """The length that will be generated, in tokens; raises as `oracle`."""
    return oracle(sampling).length


TWICE = 2.0


def within_twice(predicted: float, generated: float) -> bool:
    """Whether neither of two lengths is more than twice the other."""
    return max(predicted, generated) <= TWICE * min(predicted, generated)


def can_be_judged(request: Request, reason: FinishReason) -> bool:
    """Whether an answer that ended can be held against its prediction.

    One that max_tokens or the context has cut has no true length, and a prediction of max_tokens only repeats what the
    client asked for.
    """
    whole = reason is FinishReason.STOP or is_replayed(request.sampling)
    return whole and counts(request.predicted_length, request.sampling.max_tokens)


def counts(predicted: float | None, max_tokens: int) -> bool:
    """Whether a predicted length says more than that the answer may have all of max_tokens."""
    return predicted is not None and round(predicted) < max_tokens


def is_inside(request: Request) -> bool | None:
    """Whether the length of an answer is in the interval that was predicted with 90 %; None where there was none."""
    lengths = request.distribution
    if lengths is None:
        return None
    low, high = (round(lengths.quantile(share)) for share in TAILS)
    return low <= request.generated <= high
