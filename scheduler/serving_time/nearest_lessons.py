"""What Magnus's estimator learns: batches whose time was a surprise (section III-D), beside what the profile says.

Which batches are surprises is for `serving_time.surprises` to say, and how to learn for the estimator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from scheduler.assignment import Assignment
from scheduler.batching.batcher import Limits
from scheduler.serving_time.bilinear import rmse
from scheduler.serving_time.estimator import ServedBatch, ServingTime, surprises
from scheduler.serving_time.learning import Lesson
from scheduler.serving_time.nearest import BatchTime, first_lessons

MOST_LESSONS = 10_000
"""Batches that are remembered; the latest count, since machines and their load change."""

STEPS = 12
"""Values of each feature in the training set that the profile makes up."""


class Learner(ServingTime, Protocol):
    """An estimator that can be taught while it is asked."""

    def fit(self, batches: Sequence[BatchTime]) -> None: ...


class NearestLessons:
    """`learn` is never called twice at a time, but in whatever thread."""

    def __init__(self, estimator: Learner, basis: Sequence[BatchTime] = ()) -> None:
        self._estimator = estimator
        self._basis = tuple(basis)
        self._learnt: list[BatchTime] = []

    def read(self, assignment: Assignment) -> ServedBatch | None:
        """An assignment as a batch to learn from."""
        return served_batch(assignment)

    def learn(self, served: Sequence[ServedBatch]) -> Lesson:
        """Add the surprises to the training set."""
        found = surprises(served, self._estimator)
        error = estimate_error(self._estimator, served)
        if found:
            self._learnt = [*self._learnt, *(batch.time for batch in found)][-MOST_LESSONS:]
            self._estimator.fit([*self._basis, *self._learnt])
        return Lesson(len(served), len(found), error)


def served_batch(assignment: Assignment) -> ServedBatch | None:
    """An assignment as a batch to learn from; None when it did not run as planned, or left no trace of its time."""
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


def estimate_error(estimator: ServingTime, served: Sequence[ServedBatch]) -> float:
    """Root-mean-square error in seconds over batches, estimated with their true generation lengths."""
    features = np.array([[one.rows, one.input_length, one.generation_length] for one in served], dtype=np.float64)
    estimates = estimator.estimate_all(features)
    return rmse([(float(estimate), one.seconds) for estimate, one in zip(estimates, served, strict=True)])


def profile_lessons(profile: ServingTime, limits: Limits) -> tuple[BatchTime, ...]:
    """What the machine's profile says all over the range of its executors; nothing where their sizes are unknown."""
    if limits.slots is None or limits.context_length is None:
        return ()
    lengths = _spread(limits.context_length)
    return first_lessons(profile, _spread(limits.slots), lengths, lengths)


def _spread(most: int) -> tuple[int, ...]:
    """At most STEPS whole numbers from 1 to `most`, closer together where they are small, as most batches are."""
    return tuple(sorted({round(value) for value in np.geomspace(1, most, STEPS)}))
