"""Serving times by the nearest batches seen: k-nearest-neighbour regression that learns (Magnus, section III-D).

The regression starts from what the machine's profile says all over its range; batches whose time was a surprise are
added to its training set.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Protocol

import numpy as np

from scheduler.plan import Assignment
from scheduler.serving_time.bilinear import FloatArray, ServingTime, rmse
from scheduler.serving_time.machine import Lesson, Submit
from scheduler.serving_time.served_batch import ServedBatch, served_batch

if TYPE_CHECKING:
    from scipy.spatial import KDTree

log = logging.getLogger(__name__)

INTERVAL = 120.0
"""Seconds between two lessons, as in Magnus, section III-D."""

NEIGHBOURS = 5

SURPRISE_SECONDS = 2.0
SURPRISE_SHARE = 0.2
"""Share of the measured time. Both bounds of a surprise are those of Magnus, section III-D."""

MOST_BATCHES = 10_000
"""Batches that are remembered; the latest count, since machines and their load change."""

STEPS = 12
"""Values of each feature in the training set that is made from the profile."""


@dataclass(frozen=True, slots=True)
class BatchTime:
    """How long one batch took: a training sample."""

    rows: int
    input_length: int
    generation_length: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Regression:
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
    """A ServingTime: the mean over the batches nearest in (rows, input length, generation length), the nearer the
    heavier.

    Each feature is measured in its own standard deviations. `fit` may run in another thread than the estimates: these
    use the old regression until the new one is ready.
    """

    def __init__(self, fallback: ServingTime, *, neighbours: int = NEIGHBOURS) -> None:
        self._fallback = fallback
        self._neighbours = neighbours
        self._regression: _Regression | None = None

    def fit(self, batches: Sequence[BatchTime]) -> None:
        """Learn from these batches alone; with fewer than `neighbours` of them, estimates are the fallback's."""
        self._regression = _regression(batches) if len(batches) >= self._neighbours else None

    def estimate(self, rows: int, input_length: int, generation_length: int) -> float:
        return float(self.estimate_all(np.array([[rows, input_length, generation_length]], dtype=np.float64))[0])

    def estimate_all(self, batches: FloatArray) -> FloatArray:
        regression = self._regression
        if regression is None:
            return self._fallback.estimate_all(batches)
        return regression.regress(batches, self._neighbours)


def _regression(batches: Sequence[BatchTime]) -> _Regression:
    from scipy.spatial import KDTree  # slow to import, and not every strategy learns

    features = np.array([[one.rows, one.input_length, one.generation_length] for one in batches], dtype=np.float64)
    spread = features.std(axis=0)
    spread[spread == 0] = 1.0  # a feature that never varied parts nothing
    # Not scikit-learn's regressor, whose checks cost more than the search, and must not in a decision.
    return _Regression(KDTree(features / spread), np.array([one.seconds for one in batches]), spread)


class Learner(ServingTime, Protocol):
    """An estimator that is fitted to batches while it is asked."""

    def fit(self, batches: Sequence[BatchTime]) -> None: ...


class BatchLearning:
    """A PlanObserver that fits an estimator to surprises. `finished` belongs to the event loop; the work that it
    submits touches the training set and the results only."""

    def __init__(
        self, estimator: Learner, submit: Submit, basis: Sequence[BatchTime] = (), *, interval: float = INTERVAL
    ) -> None:
        """`basis` is part of every training set; `interval` in seconds."""
        self.latest: Lesson | None = None
        self.changes = 0
        """Lessons that changed the estimates."""
        self._estimator = estimator
        self._submit = submit
        self._basis = tuple(basis)
        self._interval = interval
        self._surprises: list[BatchTime] = []
        self._served: list[ServedBatch] = []
        self._next: float | None = None

    def on_finish(self, assignment: Assignment, now: float) -> None:
        served = served_batch(assignment)
        if served is not None:
            self._served.append(served)
        if self._next is None:
            self._next = now + self._interval
        if now >= self._next and self._served:
            self._next = now + self._interval
            served_since, self._served = tuple(self._served), []
            self._submit(partial(self._learn, served_since))

    def _learn(self, served: Sequence[ServedBatch]) -> None:
        """Add the surprises to the training set."""
        try:
            found = surprises(served, self._estimator)
            lesson = Lesson(len(served), len(found), estimate_error(self._estimator, served))
            if found:
                times = (BatchTime(one.rows, one.input_length, one.generation_length, one.seconds) for one in found)
                self._surprises = [*self._surprises, *times][-MOST_BATCHES:]
                self._estimator.fit([*self._basis, *self._surprises])
        except Exception:
            log.exception("learning serving times from %d batches failed; the estimates stay as they are", len(served))
        else:
            self.latest = lesson
            self.changes += lesson.learned > 0


def surprises(
    served: Iterable[ServedBatch],
    estimator: ServingTime,
    *,
    seconds: float = SURPRISE_SECONDS,
    share: float = SURPRISE_SHARE,
) -> tuple[ServedBatch, ...]:
    """The batches to add to an estimator's training set (Magnus, section III-D).

    Each is estimated again with its true generation length, so that a wrong length is not held against the estimator;
    those remain that are wrong by more than `seconds` and by more than `share` of the measured time.
    """
    return tuple(
        batch
        for batch in served
        if abs(estimator.estimate(batch.rows, batch.input_length, batch.generation_length) - batch.seconds)
        > max(seconds, share * batch.seconds)
    )


def estimate_error(estimator: ServingTime, served: Sequence[ServedBatch]) -> float:
    """Root-mean-square error in seconds over batches, estimated with their true generation lengths."""
    features = np.array([[one.rows, one.input_length, one.generation_length] for one in served], dtype=np.float64)
    estimates = estimator.estimate_all(features)
    return rmse([(float(estimate), one.seconds) for estimate, one in zip(estimates, served, strict=True)])


def estimated_batches(
    estimator: ServingTime, rows: Iterable[int], input_lengths: Iterable[int], generation_lengths: Iterable[int]
) -> tuple[BatchTime, ...]:
    """A training set to begin with: another estimator's times all over the range.

    Without it the first few batches learned from, which are those that went unusually, would stand for all.
    """
    cells = product(rows, input_lengths, generation_lengths)
    return tuple(BatchTime(*cell, estimator.estimate(*cell)) for cell in cells)


def profile_batches(profile: ServingTime, slots: int | None, context_length: int | None) -> tuple[BatchTime, ...]:
    """Times by the machine's profile all over the range of its executors; empty where their sizes are unknown."""
    if slots is None or context_length is None:
        return ()
    lengths = _spread(context_length)
    return estimated_batches(profile, _spread(slots), lengths, lengths)


def _spread(most: int) -> tuple[int, ...]:
    """At most STEPS whole numbers from 1 to `most`, closer together where they are small, as most batches are."""
    return tuple(sorted({round(value) for value in np.geomspace(1, most, STEPS)}))
