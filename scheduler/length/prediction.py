"""Predicted lengths of answers: their distributions, where they come from, and what predictors do.

It knows neither how lengths are predicted nor which requests wait for them.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scheduler.length.features import LengthQuery

ROUNDING = 1e-6

COVERAGE = 0.9  # part of the answers to come whose length shall be within an interval

TAILS = ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)  # the quantiles at its ends

RANKS = 20
"""Ranks that stand for those which a length may have."""


@dataclass(frozen=True, eq=False)
class LengthDistribution:
    """Lengths in tokens, each once and ascending, and their probabilities, which sum to 1."""

    lengths: NDArray[np.float32]
    weights: NDArray[np.float32]

    @classmethod
    def of(cls, lengths: NDArray[np.float32], weights: NDArray[np.float32]) -> LengthDistribution:
        """The distribution of lengths in any order, some of them several times."""
        unique, place = np.unique(lengths, return_inverse=True)
        summed = np.bincount(place, weights)
        return cls(unique.astype(np.float32), (summed / summed.sum()).astype(np.float32))

    @classmethod
    def certain(cls, length: float) -> LengthDistribution:
        """The distribution of a single length."""
        return cls(np.array([length], dtype=np.float32), np.ones(1, dtype=np.float32))

    @property
    def is_possible(self) -> bool:
        """Whether all numbers are finite, and no length is negative."""
        return bool(np.isfinite(self.lengths).all() and np.isfinite(self.weights).all() and (self.lengths >= 0).all())

    @property
    def mean(self) -> float:
        """E[G]."""
        return float(np.dot(self.lengths, self.weights))

    def quantile(self, share: float) -> float:
        """The length that this share of the answers does not exceed."""
        reached = np.cumsum(self.weights, dtype=np.float64) >= share - ROUNDING
        return float(self.lengths[reached.argmax() if reached[-1] else -1])

    def ranks(self, length: float, *, cut: bool = False) -> NDArray[np.float64]:
        """Shares of all answers that do not exceed one of this length, (RANKS,).

        They are spread evenly over the probability of the length itself, as is usual where lengths are few (Czado,
        Gneiting and Held, Biometrics 65, 2009), and where an answer was cut over that of all longer ones too.
        """
        shorter, longer = (self.weights[part].sum() for part in (self.lengths < length, self.lengths > length))
        spread = np.arange(0.5, RANKS) / RANKS
        return np.asarray(shorter + (1.0 - shorter - (0.0 if cut else longer)) * spread, dtype=np.float64)

    def coverage(self, length: float) -> float:
        """Part of an answer of this length that is between the quantiles TAILS; 0.9 in the mean where they are right.

        A length that is a quantile counts with the part of its probability that is on this side: where half of all
        answers have the same length, being cut, the interval would hold 95 % of the best predictor's.
        """
        ranks = self.ranks(length)
        return float(np.mean((ranks > TAILS[0]) & (ranks < TAILS[1])))

    def mapped(self, ranks: Sequence[float], onto: Sequence[float]) -> LengthDistribution:
        """The distribution of the same lengths where what had these ranks, ascending, has those; linear in between."""
        reached = np.cumsum(self.weights, dtype=np.float64)
        weights = np.diff(np.interp(reached / reached[-1], (0, *ranks, 1), (0, *onto, 1)), prepend=0.0)
        return LengthDistribution(self.lengths, weights.astype(np.float32))

    def remaining(self, generated: float) -> float | None:
        """E[G | G > generated] - generated, in tokens; None when no answer is known that became so long."""
        lengths, mass, expected = self._tails
        first = bisect.bisect_right(lengths, generated)
        if first == len(lengths):
            return None
        return expected[first] / mass[first] - generated

    @cached_property
    def _tails(self) -> tuple[list[float], list[float], list[float]]:
        """The lengths, and of every length and all longer ones: their probability, and the sum of length times
        probability. As lists, since one row asks for one number at a time and schedulers ask often."""
        weights = self.weights.astype(np.float64)
        tail = np.s_[::-1]
        mass, expected = np.cumsum(weights[tail])[tail], np.cumsum((weights * self.lengths)[tail])[tail]
        return self.lengths.tolist(), mass.tolist(), expected.tolist()


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
