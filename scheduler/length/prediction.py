"""Predicted lengths, their distributions and sources."""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from math import inf
from typing import Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from scheduler.length.features import LengthQuery

ROUNDING = 1e-6

COVERAGE = 0.9  # nominal coverage of intervals

TAILS = ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)  # quantiles at their ends

RANKS = 20  # ranks that stand for a range

PARETO = (*(RANKS / (place + 0.5) for place in range(RANKS - 1, 0, -1)), inf)  # quantiles, in least ones


@dataclass(frozen=True, eq=False)
class LengthDistribution:
    """Distinct ascending lengths in tokens, and their probabilities, which sum to 1."""

    lengths: NDArray[np.float32]
    weights: NDArray[np.float32]
    answers: float = inf  # that it was made from
    unlike: float = 0.0  # share of quantiles that counts all lengths alike

    @classmethod
    def of(cls, lengths: NDArray[np.float32], weights: NDArray[np.float32]) -> LengthDistribution:
        unique, place = np.unique(lengths, return_inverse=True)
        summed = np.bincount(place, weights)
        return cls(unique.astype(np.float32), (summed / summed.sum()).astype(np.float32))

    @classmethod
    def certain(cls, length: float) -> LengthDistribution:
        return cls(np.array([length], dtype=np.float32), np.ones(1, dtype=np.float32))

    @property
    def is_possible(self) -> bool:
        return bool(np.isfinite(self.lengths).all() and np.isfinite(self.weights).all() and (self.lengths >= 0).all())

    @property
    def mean(self) -> float:
        return float(np.dot(self.lengths, self.weights))

    def quantile(self, share: float) -> float:
        """As of answers exchangeable with the next; beyond the longest by Pareto's law with exponent 1."""
        lengths, reached = self._tails[0], self._reached
        if (wanted := share * (1 + 1 / self.answers)) > 1.0:
            return lengths[-1] / ((1 - share) * (1 + self.answers))
        return lengths[min(bisect.bisect_left(reached, wanted - ROUNDING), len(lengths) - 1)]

    @cached_property
    def _reached(self) -> list[float]:
        any_length = np.arange(1, len(self.lengths) + 1) / len(self.lengths)
        reached = (1 - self.unlike) * np.cumsum(self.weights, dtype=np.float64) + self.unlike * any_length
        return cast("list[float]", reached.tolist())

    def ranks(self, length: float, *, cut: bool = False) -> NDArray[np.float64]:
        """Randomised PIT (Czado, Gneiting and Held, Biometrics 65, 2009): (RANKS,) spread over the length's
        probability, and over that of all longer ones where truncated.
        """
        shorter, longer = (self.weights[part].sum() for part in (self.lengths < length, self.lengths > length))
        spread = np.arange(0.5, RANKS) / RANKS
        return np.asarray(shorter + (1.0 - shorter - (0.0 if cut else longer)) * spread, dtype=np.float64)

    def coverage(self, length: float) -> float:
        """Part of an answer between the TAILS, at one its probability inside, else ties would cover 95 %."""
        ranks = self.ranks(length)
        return float(np.mean((ranks > TAILS[0]) & (ranks < TAILS[1])))

    def mapped(self, ranks: Sequence[float], onto: Sequence[float]) -> LengthDistribution:
        """With ranks mapped, piecewise linear, both ascending."""
        reached = np.cumsum(self.weights, dtype=np.float64)
        weights = np.interp(reached / reached[-1], (0, *ranks, 1), (0, *onto, 1))
        weights[1:] -= weights[:-1].copy()
        return LengthDistribution(self.lengths, weights.astype(np.float32))

    def opened(self, longest: float, most: float) -> LengthDistribution:
        """Truncated lengths beyond the `longest` complete one spread up to the `most` allowed (Pareto, exponent 1)."""
        beyond = self.lengths > longest
        if not beyond.any():
            return self
        first = self.lengths[beyond].astype(np.float64)
        spread = np.maximum(first, np.minimum(np.outer(PARETO, first), most)).astype(np.float32)
        lengths = np.concatenate((self.lengths[~beyond], spread.ravel()))
        shares = np.broadcast_to(self.weights[beyond] / RANKS, spread.shape).astype(np.float32)
        weights = np.concatenate((self.weights[~beyond], shares.ravel()))
        return replace(self.of(lengths, weights), unlike=self.unlike)

    def remaining(self, generated: float) -> float | None:
        """E[G | G > generated] - generated, in tokens; None beyond the longest known answer."""
        lengths, mass, expected = self._tails
        first = bisect.bisect_right(lengths, generated)
        return None if first == len(lengths) else expected[first] / mass[first] - generated

    def remaining_quantiles(self, generated: float, shares: Sequence[float]) -> list[float]:
        """Of G - generated given G > generated; empty beyond the longest known answer."""
        lengths, reached = self._tails[0], self._reached
        first = bisect.bisect_right(lengths, generated)
        if first == len(lengths):
            return []
        past = reached[first - 1] if first else 0.0
        wanted = (past + share * (reached[-1] - past) - ROUNDING for share in shares)
        return [lengths[min(bisect.bisect_left(reached, one), len(lengths) - 1)] - generated for one in wanted]

    @cached_property
    def _tails(self) -> tuple[list[float], list[float], list[float]]:
        """Lengths, and for each the probability, and the sum of length times probability, of it and all longer ones.
        Lists: schedulers ask for one number at a time.
        """
        weights = self.weights.astype(np.float64)
        tail = np.s_[::-1]
        mass, expected = np.cumsum(weights[tail])[tail], np.cumsum((weights * self.lengths)[tail])[tail]
        return self.lengths.tolist(), mass.tolist(), expected.tolist()


class Source(StrEnum):
    OWN = "own-embeddings"
    FOREST = "forest"
    PROXY = "proxy"
    CACHE = "cache"  # of a near-duplicate
    HISTORY = "history"  # quantile of the latest answers
    MAX_TOKENS = "max_tokens"  # nothing else is known
    ORACLE = "oracle"  # carried by a replayed request (design 3.1)


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    features: tuple[float, ...]  # kept in the journal for learning
    distribution: LengthDistribution | None  # None before the first forest
    source: Source = Source.FOREST


Answer: TypeAlias = "asyncio.Future[Estimate | None]"  # to come; None where the predictor failed


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    length: float
    source: Source
    features: tuple[float, ...] = ()  # empty without an answer in time
    distribution: LengthDistribution | None = None
    late: Answer | None = None  # an estimate still to come

    def forget(self) -> None:
        if self.late is not None:
            self.late.cancel()


def prediction_of(query: LengthQuery, estimate: Estimate) -> Prediction | None:
    if estimate.distribution is None:
        return None
    length = min(max(1.0, estimate.distribution.mean), query.max_tokens)
    return Prediction(length, estimate.source, estimate.features, estimate.distribution)


class LengthPredictor(Protocol):
    """May raise anything."""

    async def estimate(self, queries: Sequence[LengthQuery]) -> Sequence[Estimate]:
        """One for each query, in order."""
