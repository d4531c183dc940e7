"""How long an answer may become: lengths and how likely each is, and what is left once a part is there."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-6


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

    def stretched(self, factor: float) -> LengthDistribution:
        """The distribution with all distances from the mean multiplied, and no length below 1."""
        mean = self.mean
        return LengthDistribution(np.maximum(mean + factor * (self.lengths - mean), 1.0), self.weights)

    def scaled(self, factor: float) -> LengthDistribution:
        """The distribution of lengths that are so many times as long, and no length below 1."""
        return LengthDistribution(np.maximum(factor * self.lengths, 1.0), self.weights)

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
