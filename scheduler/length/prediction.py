"""Predicted lengths of answers, where they come from, and what a predictor can do: data and a contract.

It knows neither how lengths are predicted nor which requests wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from scheduler.length.distribution import LengthDistribution
from scheduler.length.features import LengthQuery


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
