"""What is foreseen of an answer's length, where that comes from, and what a predictor is: data and a contract.

It knows neither how lengths are predicted nor who waits for them.
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
    """What a predicted length comes from."""

    FOREST = "forest"
    PROXY = "proxy"
    CACHE = "cache"
    """The answer to a near-duplicate that came before."""
    HISTORY = "history"
    """A quantile of the answers that ended lately."""
    MAX_TOKENS = "max_tokens"
    """The longest that the answer may become: nothing is known."""
    ORACLE = "oracle"
    """The length that the request brought along (design 7.3)."""


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """What the predictor makes of one request."""

    features: tuple[float, ...]
    """For the journal, which learning reads."""
    distribution: LengthDistribution | None
    """None as long as there is no forest."""
    source: Source = Source.FOREST
    """What the distribution comes from."""


Answer: TypeAlias = "asyncio.Future[Estimate | None]"
"""None where the predictor failed."""


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """G'(p) in tokens, the end token included, and where it comes from."""

    length: float
    source: Source
    features: tuple[float, ...] = ()
    """Empty where the predictor did not answer in time."""
    distribution: LengthDistribution | None = None
    late: Answer | None = None
    """Where the answer will be, or may, that did not come in time."""

    def forget(self) -> None:
        """Nobody wants what has not come in time any more."""
        if self.late is not None:
            self.late.cancel()

    @property
    def features_by_now(self) -> tuple[float, ...]:
        """The same, or what came too late: it is still good to learn from."""
        if self.late is None or not self.late.done() or self.late.cancelled():
            return self.features
        estimate = self.late.result()
        return self.features if estimate is None else estimate.features


def foreseen(query: LengthQuery, estimate: Estimate) -> Prediction | None:
    """What an estimate says of a request; None where it says nothing."""
    if estimate.distribution is None:
        return None
    length = min(max(1.0, estimate.distribution.mean), query.max_tokens)
    return Prediction(length, estimate.source, estimate.features, estimate.distribution)


class LengthPredictor(Protocol):
    """Works elsewhere, a batch at a time; may raise anything."""

    async def estimate(self, queries: Sequence[LengthQuery]) -> Sequence[Estimate]:
        """One estimate for each query, in order."""
        ...
