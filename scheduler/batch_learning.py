"""Learning from batches that have ended, while others run: what they took refines the estimates of what the next
will take (Magnus, section III-D).

It knows when to learn; from which batches is for `serving_time.surprises` to say, and how for the estimator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np

from scheduler.assignment import Assignment
from scheduler.batching import Limits
from scheduler.bilinear import rmse
from scheduler.nearest import BatchTime, first_lessons
from scheduler.serving_time import ServedBatch, ServingTime, surprises

log = logging.getLogger(__name__)

INTERVAL = 120.0
"""Seconds between two lessons, as in Magnus, section III-D."""

MOST_LESSONS = 10_000
"""Batches that are remembered; the latest count, since machines and their load change."""

STEPS = 12
"""Values of each feature in the training set that the profile makes up."""

Submit: TypeAlias = Callable[[Callable[[], None]], object]
"""Runs work off the event loop, one piece after another."""


class Learner(ServingTime, Protocol):
    """An estimator that can be taught while it is asked."""

    def fit(self, batches: Sequence[BatchTime]) -> None: ...


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one look at the batches of an interval brought."""

    batches: int
    surprises: int
    rmse: float
    """Of the estimates before learning, with the true generation lengths, in seconds (Magnus, figure 14)."""


def inline(work: Callable[[], None]) -> None:
    """A Submit for tests and simulations: at once, and here."""
    work()


class BatchLearning:
    """An Observer. `finished` belongs to the event loop; what it submits touches the estimator and the lessons only."""

    def __init__(
        self, estimator: Learner, submit: Submit, *, basis: Sequence[BatchTime] = (), interval: float = INTERVAL
    ) -> None:
        self.latest: Lesson | None = None
        self._estimator = estimator
        self._submit = submit
        self._interval = interval
        self._basis = tuple(basis)
        self._learnt: list[BatchTime] = []
        self._served: list[ServedBatch] = []
        self._next: float | None = None

    def finished(self, assignment: Assignment, now: float) -> None:
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
        try:
            self.latest = self._lesson(served)
        except Exception:
            log.exception("learning serving times from %d batches failed; the estimates stay as they are", len(served))

    def _lesson(self, served: Sequence[ServedBatch]) -> Lesson:
        found = surprises(served, self._estimator)
        error = estimate_error(self._estimator, served)
        if found:
            self._learnt = [*self._learnt, *(batch.time for batch in found)][-MOST_LESSONS:]
            self._estimator.fit([*self._basis, *self._learnt])
        return Lesson(len(served), len(found), error)


def served_batch(assignment: Assignment) -> ServedBatch | None:
    """An assignment as a batch to learn from; None when it did not run as planned, or left no trace of its time."""
    if not assignment.intact or assignment.began is None or assignment.ended is None:
        return None
    return ServedBatch(
        rows=len(assignment.plan.requests),
        input_length=assignment.input_length,
        predicted_length=assignment.plan.generation_length,
        generation_length=assignment.iterations,
        predicted_seconds=assignment.plan.estimate,
        seconds=assignment.ended - assignment.began,
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
