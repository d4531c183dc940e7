"""Batches that ran as planned: their predictions, and what they came to.

Serving times by the nearest batches seen: k-nearest-neighbour regression that learns (Magnus, section III-D).

What is regressed is how many times as long as the machine's profile says a batch took. So the profile speaks wherever
nothing was learned, exactly, and one surprise tells of batches many times as large.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from scheduler.plan import Assignment
from scheduler.serving_time.bilinear import LEAST_SECONDS, FloatArray, ServingTime, rmse
from scheduler.serving_time.machine import Lesson, Submit


@dataclass(frozen=True, slots=True)
class ServedBatch:
    """A batch that has ended: its prediction, and what it came to."""

    rows: int
    input_length: int
    predicted_length: int
    """G'(B), the generation length with which its time was estimated."""
    generation_length: int
    """G(B), the true one."""
    predicted_seconds: float
    seconds: float


def served_batch(assignment: Assignment) -> ServedBatch | None:
    """An assignment as a batch to learn from; None when it did not run as planned, or its begin or end is unknown."""
    seconds = assignment.seconds
    if seconds is None:
        return None
    return ServedBatch(
        rows=len(assignment.plan.requests),
        input_length=assignment.input_length,
        predicted_length=assignment.plan.generation_length,
        generation_length=assignment.iterations,
        predicted_seconds=assignment.plan.estimate,
        seconds=seconds,
    )


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

PROFILE_DISTANCE = 1.0
"""Distance at which the profile counts as one more neighbour: as far as e times as many rows or tokens."""

EXACT = 1e-3
"""Distance below which all neighbours count alike."""


@dataclass(frozen=True, slots=True)
class BatchTime:
    """How long one batch took: a training sample."""

    rows: int
    input_length: int
    generation_length: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Regression:
    """Batches by the logarithms of their features, and the logarithm of what each took to what the profile says."""

    tree: KDTree
    ratios: FloatArray  # (batches,)

    def regress(self, batches: FloatArray, neighbours: int) -> FloatArray:
        """Factors (batches,) on the profile's estimates: means weighted by the inverse of the distance."""
        distances, nearest = self.tree.query(_logarithms(batches), k=range(1, neighbours + 1))
        weights = 1 / np.maximum(distances, EXACT)
        means = (weights * self.ratios[nearest]).sum(axis=1) / (weights.sum(axis=1) + 1 / PROFILE_DISTANCE)
        factors: FloatArray = np.exp(means)
        return factors


class Nearest:
    """A ServingTime: the profile's estimate times what the batches nearest in (rows, input length, generation length)
    took of theirs, the nearer the heavier.

    `fit` may run in another thread than the estimates: these use the old regression until the new one is ready.
    """

    def __init__(self, profile: ServingTime, *, neighbours: int = NEIGHBOURS) -> None:
        self._profile = profile
        self._neighbours = neighbours
        self._regression: _Regression | None = None

    def fit(self, batches: Sequence[BatchTime]) -> None:
        """Learn from these batches alone; with fewer than `neighbours` of them, estimates are the profile's."""
        self._regression = _regression(batches, self._profile) if len(batches) >= self._neighbours else None

    def estimate(self, rows: int, input_length: int, generation_length: int) -> float:
        return float(self.estimate_all(np.array([[rows, input_length, generation_length]], dtype=np.float64))[0])

    def estimate_all(self, batches: FloatArray) -> FloatArray:
        regression, seconds = self._regression, self._profile.estimate_all(batches)
        return seconds if regression is None else seconds * regression.regress(batches, self._neighbours)


def _regression(batches: Sequence[BatchTime], profile: ServingTime) -> _Regression:
    from scipy.spatial import KDTree  # slow to import, and not every strategy learns

    features = np.array([[one.rows, one.input_length, one.generation_length] for one in batches], dtype=np.float64)
    said, took = profile.estimate_all(features), np.array([one.seconds for one in batches])
    ratios = np.log(np.maximum(took, LEAST_SECONDS) / np.maximum(said, LEAST_SECONDS))
    # Not scikit-learn's regressor, whose checks cost more than the search, and must not in a decision.
    return _Regression(KDTree(_logarithms(features)), ratios)


def _logarithms(batches: FloatArray) -> FloatArray:
    """Features (batches, 3) in which a distance is a factor, whatever the feature."""
    logarithms: FloatArray = np.log(np.maximum(batches, 1.0))
    return logarithms


class Learner(ServingTime, Protocol):
    """An estimator that is fitted to batches while it is asked."""

    def fit(self, batches: Sequence[BatchTime]) -> None: ...


class BatchLearning:
    """A PlanObserver that fits an estimator to surprises. `finished` belongs to the event loop; the work that it
    submits touches the training set and the results only."""

    def __init__(self, estimator: Learner, submit: Submit, *, interval: float = INTERVAL) -> None:
        """`interval` in seconds."""
        self.latest: Lesson | None = None
        self.changes = 0
        """Lessons that changed the estimates."""
        self._estimator = estimator
        self._submit = submit
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
                self._estimator.fit(self._surprises)
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
