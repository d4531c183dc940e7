"""Batches that ran as planned: their predictions, and what they came to.

Serving times by the nearest batches seen: k-nearest-neighbour regression that learns (Magnus, section III-D).

What is regressed is how many times as long as the machine's profile says a batch took. So the profile speaks wherever
nothing was learned, exactly, and one surprise tells of batches many times as large.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.measure.timing import SliceTiming
from scheduler.learner import Learner, Lesson, Submit
from scheduler.plan import Assignment
from scheduler.serving_time.bilinear import LEAST_SECONDS, FloatArray, ServingTime, rmse

if TYPE_CHECKING:
    from scipy.spatial import KDTree

INTERVAL = 120.0
"""Seconds between two lessons, as in Magnus, section III-D."""

NEIGHBOURS = 5

SURPRISE_SECONDS = 2.0
SURPRISE_SHARE = 0.2
"""Share of the measured time. Both bounds of a surprise are those of Magnus, section III-D."""

MOST_BATCHES = 10_000
"""Batches that are remembered; the latest count, since machines and their load change."""

FOLDS = 8
"""Parts of the batches, each of which lessons of the others are checked on."""

LEAST_CHECKED = 5
"""Batches of a part that lessons are checked on; all of the interval where these are more."""

PROFILE_DISTANCE = 1.0
"""Distance at which the profile counts as one more neighbour: as far as e times as many rows or tokens."""

EXACT = 1e-3
"""Distance below which all neighbours count alike."""


def served_batch(assignment: Assignment) -> SliceTiming | None:
    """An assignment as a batch to learn from, known by its true G(B); None when it did not run as planned, or its begin
    or end is unknown."""
    if assignment.seconds is None:
        return None
    rows = len(assignment.plan.requests)
    return SliceTiming(rows, assignment.input_length, assignment.iterations, assignment.seconds)


def _features(batches: Sequence[SliceTiming]) -> FloatArray:
    """Rows, input lengths and generation lengths: (batches, 3)."""
    features = [(one.rows, one.length, one.iterations) for one in batches]
    return np.array(features, dtype=np.float64).reshape(-1, 3)


def _logarithms(features: FloatArray) -> FloatArray:
    """Features (batches, 3) in which a distance is a factor, whatever the feature."""
    return np.asarray(np.log(np.maximum(features, 1.0)))


class Nearest(ServingTime):
    """A ServingTime: the profile's estimate times what the batches nearest in (rows, input length, generation length)
    took of theirs, the nearer the heavier.

    `fit` may run in another thread than the estimates: these use the old regression until the new one is ready.
    """

    def __init__(self, profile: ServingTime, *, neighbours: int = NEIGHBOURS) -> None:
        self._profile = profile
        self._neighbours = neighbours
        self._regression: tuple[KDTree, FloatArray] | None = None
        """Batches by the logarithms of their features, and the logarithm of what each took to what the profile says."""

    def fitted(self, batches: Sequence[SliceTiming]) -> Nearest:
        """A new estimator beside the same profile that has learned from these batches alone."""
        pupil = Nearest(self._profile, neighbours=self._neighbours)
        pupil.fit(batches)
        return pupil

    def fit(self, batches: Sequence[SliceTiming]) -> None:
        """Learn from these batches alone; with fewer than `neighbours` of them, estimates are the profile's."""
        if len(batches) < self._neighbours:
            self._regression = None
            return
        from scipy.spatial import KDTree  # slow to import, and not every strategy learns

        features, took = _features(batches), np.array([one.seconds for one in batches])
        said = self._profile.estimate_all(features)
        ratios = np.log(np.maximum(took, LEAST_SECONDS) / np.maximum(said, LEAST_SECONDS))
        # Not scikit-learn's regressor, whose checks cost more than the search, and must not in a decision.
        self._regression = KDTree(_logarithms(features)), ratios

    def estimate_all(self, batches: FloatArray) -> FloatArray:
        regression, seconds = self._regression, self._profile.estimate_all(batches)
        if regression is None:
            return seconds
        tree, ratios = regression
        distances, nearest = tree.query(_logarithms(batches), k=range(1, self._neighbours + 1))
        weights = 1 / np.maximum(distances, EXACT)
        means = (weights * ratios[nearest]).sum(axis=1) / (weights.sum(axis=1) + 1 / PROFILE_DISTANCE)
        return np.asarray(seconds * np.exp(means))


class BatchLearning:
    """A PlanObserver that fits an estimator to surprises. `on_finish` belongs to the event loop; the work that it
    submits touches the training set only.

    Where times only scatter, surprises are outliers, and an estimator fitted to them is worse than the profile. So it
    is fitted to them only while that makes estimates better of batches whose surprises it was not fitted to.
    """

    def __init__(self, estimator: Nearest, submit: Submit) -> None:
        self.learner = Learner[SliceTiming]("serving times", self._learn, submit)
        self._estimator = estimator
        self._folds = [_Fold() for _ in range(FOLDS)]

    def on_finish(self, assignment: Assignment, now: float) -> None:
        served = served_batch(assignment)
        if served is not None:
            self.learner.rows.append(served)
        self.learner.learn_at_intervals(now, INTERVAL)

    def _learn(self, served: Sequence[SliceTiming]) -> Lesson:
        """Add the surprises to the training set, and fit the estimator to it, or to nothing where that is better."""
        error, learned = estimate_error(self._estimator, served), 0
        found = [fold.add(served[place::FOLDS], self._estimator) for place, fold in enumerate(self._folds)]
        self._folds = [*self._folds[len(served) % FOLDS :], *self._folds[: len(served) % FOLDS]]  # the next is first
        if any(found):
            better = self._is_better()
            self._estimator.fit(_surprises_of(self._folds) if better else ())
            learned = sum(found) if better else 0
        return Lesson(len(served), learned, error)

    def _is_better(self) -> bool:
        """Whether the surprises make estimates better of those latest batches that they are not among."""
        taught = profile = 0.0
        for fold in self._folds:
            if count := len(fold.latest):
                pupil = self._estimator.fitted(_surprises_of(one for one in self._folds if one is not fold))
                taught += count * estimate_error(pupil, fold.latest) ** 2
                profile += count * estimate_error(self._estimator.fitted(()), fold.latest) ** 2
        return taught < profile


@dataclass(slots=True)
class _Fold:
    """One of FOLDS parts of all batches: the surprises among them, and the latest of all."""

    surprises: Sequence[SliceTiming] = ()
    latest: Sequence[SliceTiming] = ()

    def add(self, served: Sequence[SliceTiming], estimator: Nearest) -> int:
        """Add what was served; returns the number of surprises."""
        found = surprises(served, estimator)
        self.surprises = [*self.surprises, *found][-MOST_BATCHES // FOLDS :]
        self.latest = [*self.latest, *served][-max(LEAST_CHECKED, len(served)) :]
        return len(found)


def _surprises_of(folds: Iterable[_Fold]) -> list[SliceTiming]:
    return [one for fold in folds for one in fold.surprises]


def surprises(served: Sequence[SliceTiming], estimator: ServingTime) -> tuple[SliceTiming, ...]:
    """The batches to add to an estimator's training set (Magnus, section III-D).

    Each is estimated again with its true generation length, so that a wrong length is not held against the estimator;
    those remain that are wrong by more than SURPRISE_SECONDS and by more than SURPRISE_SHARE of the measured time.
    """
    estimates = estimator.estimate_all(_features(served)).tolist()
    return tuple(
        batch
        for batch, seconds in zip(served, estimates, strict=True)
        if abs(seconds - batch.seconds) > max(SURPRISE_SECONDS, SURPRISE_SHARE * batch.seconds)
    )


def estimate_error(estimator: ServingTime, served: Sequence[SliceTiming]) -> float:
    """Root-mean-square error in seconds over batches, estimated with their true generation lengths."""
    estimates = estimator.estimate_all(_features(served)).tolist()
    return rmse([(seconds, one.seconds) for seconds, one in zip(estimates, served, strict=True)])
