"""k-nearest-neighbour regression of serving times that learns (Magnus, section III-D), as a factor of the machine's
profile.
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

INTERVAL = 120.0  # seconds between lessons (section III-D)

NEIGHBOURS = 5

SURPRISE_SECONDS = 2.0
SURPRISE_SHARE = 0.2  # of the measured time (section III-D)

MOST_BATCHES = 10_000  # newest count

FOLDS = 8  # of cross-validation

LEAST_CHECKED = 5  # batches, the newest, that a fold is checked on, or all of the interval

PROFILE_DISTANCE = 1.0  # where the profile counts as one more neighbour: a factor of e

EXACT = 1e-3  # distance below which neighbours weigh alike


def served_batch(assignment: Assignment) -> SliceTiming | None:
    """A batch with its true G(B); None when it did not run as planned, or a time is unknown."""
    if assignment.seconds is None:
        return None
    rows = len(assignment.plan.requests)
    return SliceTiming(rows, assignment.input_length, assignment.iterations, assignment.seconds)


def _features(batches: Sequence[SliceTiming]) -> FloatArray:
    """Rows, input lengths and generation lengths: (batches, 3)."""
    return np.array([(one.rows, one.length, one.iterations) for one in batches], dtype=np.float64).reshape(-1, 3)


def _logarithms(features: FloatArray) -> FloatArray:
    """(batches, 3), in which distances are factors."""
    return np.asarray(np.log(np.maximum(features, 1.0)))


class Nearest(ServingTime):
    """The profile's estimate times the distance-weighted ratio of its nearest batches; thread-safe."""

    def __init__(self, profile: ServingTime, *, neighbours: int = NEIGHBOURS) -> None:
        self._profile = profile
        self._neighbours = neighbours
        self._regression: tuple[KDTree, FloatArray] | None = None  # log features -> log ratio to the profile

    def fitted(self, batches: Sequence[SliceTiming]) -> Nearest:
        pupil = Nearest(self._profile, neighbours=self._neighbours)
        pupil.fit(batches)
        return pupil

    def fit(self, batches: Sequence[SliceTiming]) -> None:
        """With fewer than `neighbours` batches, estimates are the profile's."""
        if len(batches) < self._neighbours:
            self._regression = None
            return
        from scipy.spatial import KDTree  # slow to import

        features, took = _features(batches), np.array([one.seconds for one in batches])
        said = self._profile.estimate_all(features)
        ratios = np.log(np.maximum(took, LEAST_SECONDS) / np.maximum(said, LEAST_SECONDS))
        # scikit-learn's regressor has checks that cost more than the search
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
    """Fits an estimator to surprises, while that improves estimates of other batches. `on_finish` belongs to the event
    loop.
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
        error, learned = estimate_error(self._estimator, served), 0
        found = [fold.add(served[place::FOLDS], self._estimator) for place, fold in enumerate(self._folds)]
        self._folds = [*self._folds[len(served) % FOLDS :], *self._folds[: len(served) % FOLDS]]
        if any(found):
            taught = profile = 0.0
            for fold in [fold for fold in self._folds if fold.latest]:
                pupil = self._estimator.fitted(_surprises_of(one for one in self._folds if one is not fold))
                taught += len(fold.latest) * estimate_error(pupil, fold.latest) ** 2
                profile += len(fold.latest) * estimate_error(self._estimator.fitted(()), fold.latest) ** 2
            self._estimator.fit(_surprises_of(self._folds) if taught < profile else ())
            learned = sum(found) if taught < profile else 0
        return Lesson(len(served), learned, error)


@dataclass(slots=True)
class _Fold:
    surprises: Sequence[SliceTiming] = ()
    latest: Sequence[SliceTiming] = ()

    def add(self, served: Sequence[SliceTiming], estimator: Nearest) -> int:
        found = surprises(served, estimator)
        self.surprises = [*self.surprises, *found][-MOST_BATCHES // FOLDS :]
        self.latest = [*self.latest, *served][-max(LEAST_CHECKED, len(served)) :]
        return len(found)


def _surprises_of(folds: Iterable[_Fold]) -> list[SliceTiming]:
    return [one for fold in folds for one in fold.surprises]


def surprises(served: Sequence[SliceTiming], estimator: ServingTime) -> tuple[SliceTiming, ...]:
    """Batches wrong by more than SURPRISE_SECONDS and SURPRISE_SHARE, given their true lengths (Magnus, section
    III-D).
    """
    estimates = estimator.estimate_all(_features(served)).tolist()
    return tuple(
        batch
        for batch, seconds in zip(served, estimates, strict=True)
        if abs(seconds - batch.seconds) > max(SURPRISE_SECONDS, SURPRISE_SHARE * batch.seconds)
    )


def estimate_error(estimator: ServingTime, served: Sequence[SliceTiming]) -> float:
    """RMSE in seconds, given true generation lengths."""
    estimates = estimator.estimate_all(_features(served)).tolist()
    return rmse([(seconds, one.seconds) for seconds, one in zip(estimates, served, strict=True)])
