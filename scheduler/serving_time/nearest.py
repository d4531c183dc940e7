"""Serving times by the nearest batches seen: k-nearest-neighbour regression (Magnus, section III-D).

It knows neither when to learn nor from what; until it has learnt, another estimator speaks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from scheduler.serving_time.bilinear import FloatArray

if TYPE_CHECKING:
    from scipy.spatial import KDTree

    from scheduler.serving_time.estimator import ServingTime

NEIGHBOURS = 5


@dataclass(frozen=True, slots=True)
class BatchTime:
    """How long one batch took: a training sample."""

    rows: int
    input_length: int
    generation_length: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Learnt:
    """Batches by their features, each divided by its `spread`."""

    tree: KDTree
    seconds: FloatArray  # (batches,)
    spread: FloatArray  # (3,)

    def regress(self, batches: FloatArray, neighbours: int) -> FloatArray:
        """Means weighted by the inverse of the distance; where batches are met exactly, by these alone."""
        distances, nearest = self.tree.query(batches / self.spread, k=range(1, neighbours + 1))
        met = distances == 0
        inverse = 1 / np.where(met, 1.0, distances)
        weights = np.where(met.any(axis=1, keepdims=True), met, inverse)
        means: FloatArray = (weights * self.seconds[nearest]).sum(axis=1) / weights.sum(axis=1)
        return means


class Nearest:
    """The mean over the batches nearest in (rows, input length, generation length), the nearer the heavier.

    Each feature is measured in its own standard deviations. `fit` may run in another thread than the estimates: these
    use the old regression until the new one is ready.
    """

    def __init__(self, fallback: ServingTime, *, neighbours: int = NEIGHBOURS) -> None:
        self._fallback = fallback
        self._neighbours = neighbours
        self._learnt: _Learnt | None = None

    @property
    def speaks(self) -> bool:
        """Whether estimates are its own."""
        return self._learnt is not None

    def fit(self, batches: Sequence[BatchTime]) -> None:
        """Learn from these batches alone; with fewer than `neighbours` of them, the fallback speaks."""
        self._learnt = self._learn(batches) if len(batches) >= self._neighbours else None

    def estimate(self, rows: int, input_length: int, generation_length: int) -> float:
        """Seconds that such a batch takes."""
        return float(self.estimate_all(np.array([[rows, input_length, generation_length]], dtype=np.float64))[0])

    def estimate_all(self, batches: FloatArray) -> FloatArray:
        """(batches, 3) -> (batches,) in seconds."""
        learnt = self._learnt
        if learnt is None:
            return self._fallback.estimate_all(batches)
        return learnt.regress(batches, self._neighbours)

    def _learn(self, batches: Sequence[BatchTime]) -> _Learnt:
        from scipy.spatial import KDTree  # slow to import, and not every strategy learns

        features = np.array([[one.rows, one.input_length, one.generation_length] for one in batches], dtype=np.float64)
        spread = features.std(axis=0)
        spread[spread == 0] = 1.0  # a feature that never varied parts nothing
        # Not scikit-learn's regressor, whose checks cost more than the search, and must not in a decision.
        return _Learnt(KDTree(features / spread), np.array([one.seconds for one in batches]), spread)


def first_lessons(
    estimator: ServingTime, rows: Iterable[int], input_lengths: Iterable[int], generation_lengths: Iterable[int]
) -> tuple[BatchTime, ...]:
    """A training set to begin with: what another estimator says all over the range.

    Without it the first few batches learnt, which are those that went unusually, would speak for all.
    """
    cells = product(rows, input_lengths, generation_lengths)
    return tuple(BatchTime(*cell, estimator.estimate(*cell)) for cell in cells)
