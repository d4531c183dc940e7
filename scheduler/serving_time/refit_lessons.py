"""What the bilinear estimates learn from closed batches: each lesson is a re-fit from the profile and the latest.

It knows neither when a lesson is due nor where earlier batches come from.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.measure.timing import Timings
from scheduler.assignment import Assignment
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.closed_batch import ClosedBatch, closed_batch
from scheduler.serving_time.learning import Lesson
from scheduler.serving_time.refit import error, refit
from scheduler.serving_time.refitted import Refitted

log = logging.getLogger(__name__)

MOST_BATCHES = 1_000
"""The latest batches count, since machines and their load change."""


@dataclass(frozen=True, slots=True)
class RefitData:
    """What re-fits begin with."""

    timings: Timings
    """What the profile was fitted to."""
    earlier: tuple[ClosedBatch, ...] = ()
    """Batches that were served before, the latest last."""
    model: Bilinear | None = None
    """What both of them say together; None for the profile."""


def grounds(profile: Bilinear, timings: Timings, earlier: Sequence[ClosedBatch] = ()) -> RefitData:
    """With the model of what was served before. Raises as `refit`."""
    latest = tuple(earlier)[-MOST_BATCHES:]
    model = refit(profile, timings, latest)
    if model is not profile:
        _tell(profile, model, latest)
    return RefitData(timings, latest, model)


class RefitLessons:
    """`learn` is never called twice at a time, but in whatever thread."""

    def __init__(self, estimator: Refitted, begin: RefitData) -> None:
        self._estimator = estimator
        self._timings = begin.timings
        self._batches = deque(begin.earlier, maxlen=MOST_BATCHES)
        estimator.model = begin.model or estimator.profile

    def read(self, assignment: Assignment) -> ClosedBatch | None:
        """An assignment as a batch to learn from."""
        return closed_batch(assignment)

    def learn(self, served: Sequence[ClosedBatch]) -> Lesson:
        """Fit again, from these batches too."""
        before = self._estimator.model
        surprise = error(before, served)
        self._batches.extend(served)
        model = refit(self._estimator.profile, self._timings, self._batches)
        self._estimator.model = model
        changed = model is not before
        if changed:
            _tell(before, model, self._batches)
        return Lesson(len(served), len(self._batches) if changed else 0, surprise)


def _tell(before: Bilinear, model: Bilinear, batches: Sequence[ClosedBatch]) -> None:
    log.info(
        "serving times re-fitted from %d batches: RMSE %.3f s, before %.3f s",
        len(batches),
        error(model, batches),
        error(before, batches),
    )
