"""The bilinear serving-time model fitted again, from its profile and from closed batches that were served.

Whatever was measured is one linear equation in the eight coefficients of prefill and decode: a cell of a profile in
four of them, a slice or a batch in all. They are solved together by least squares, each divided by what was measured,
since an iteration, a prefill and a slice differ a hundredfold: so relative errors count, and a batch that stalled,
however long, is not further off than by 1. What copies take is left as the profile has it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import isfinite

import numpy as np

from engine.measure.timing import Timings
from scheduler.plan import Assignment
from scheduler.serving_time.bilinear import Bilinear, FloatArray, least_squares, middle, rmse, terms
from scheduler.serving_time.estimator import BilinearEstimator
from scheduler.serving_time.learning import Lesson
from scheduler.serving_time.served_batch import ClosedBatch, closed_batch

log = logging.getLogger(__name__)

FEWEST = 16
"""Batches below which there is no re-fit: a slow minute must not stand for a machine."""

WORTH = 16
"""Batches that a whole profile counts as much as: enough to decide what batches leave open, and not what they tell."""

MOST_BATCHES = 1_000
"""Batches that are remembered; the latest count, since machines and their load change."""


def refit(profile: Bilinear, timings: Timings, batches: Sequence[ClosedBatch]) -> Bilinear:
    """The model of what was measured for the profile and of what batches took; the profile itself where these are fewer
    than FEWEST, or where it explains them better.

    The profile speaks for lengths and sizes that no batch had: all its timings together count as much as WORTH batches,
    and slowed by as much as batches are now, by the median of what they took over what it says. Else a machine
    that became slower would seem to be so for some lengths only. Raises ValueError or RuntimeError where no model can
    be found.
    """
    measured = [batch for batch in batches if batch.seconds > 0]
    if len(measured) < FEWEST:
        return profile
    own, seconds = _profiled(timings)
    served, left = _served(measured), np.array([one.seconds - one.copies(profile) for one in measured])
    taken = np.array([one.seconds for one in measured])
    share = np.sqrt(WORTH / max(1, len(own)))
    weights = np.concatenate([share / (_slowdown(profile, measured) * seconds), 1 / taken])
    values = np.concatenate([np.full(len(own), share), left / taken])
    found = least_squares(np.concatenate([own, served]) * weights[:, np.newaxis], values)
    if not all(map(isfinite, found)):
        return profile
    p1, p2, p3, p4, d1, d2, d3, d4 = found
    model = replace(profile, p1=p1, p2=p2, p3=p3, p4=p4, d1=d1, d2=d2, d3=d3, d4=d4)
    return model if relative_error(model, measured) <= relative_error(profile, measured) else profile


def error(model: Bilinear, batches: Sequence[ClosedBatch]) -> float:
    """Root-mean-square error of a model over batches, one at least, in seconds."""
    return rmse([(one.estimate(model), one.seconds) for one in batches])


def relative_error(model: Bilinear, batches: Sequence[ClosedBatch]) -> float:
    """Root-mean-square error of a model over batches, as a share of what each took, which must not be 0."""
    return rmse([(one.estimate(model) / one.seconds, 1.0) for one in batches])


def _slowdown(profile: Bilinear, batches: Sequence[ClosedBatch]) -> float:
    """Median of batches' seconds over those of the profile, copies aside; 1 where that is no number above 0."""
    copies = [one.copies(profile) for one in batches]
    ratios = [
        (one.seconds - copied) / (estimate - copied)
        for one, copied in zip(batches, copies, strict=True)
        if (estimate := one.estimate(profile)) > copied
    ]
    ratio = float(np.median(ratios)) if ratios else 1.0
    return ratio if ratio > 0 and isfinite(ratio) else 1.0


def _profiled(timings: Timings) -> tuple[FloatArray, FloatArray]:
    """Terms (cells, 8) and seconds (cells,) of all measurements for a profile but copies."""
    cells = chain(
        ((one.rows, one.length, 0, 0, 0, one.seconds) for one in timings.prefill),
        ((0, 0, one.rows, one.length, 1, one.seconds) for one in timings.decode),
        (
            (one.rows, one.length, one.rows, middle(one.length, one.iterations), one.iterations, one.seconds)
            for one in timings.slices
        ),
    )
    columns = np.array([cell for cell in cells if cell[-1] > 0], dtype=np.float64).reshape(-1, 6)
    return _terms(columns[:, :5]), columns[:, 5]


def _served(batches: Sequence[ClosedBatch]) -> FloatArray:
    """Terms (batches, 8) of closed batches."""
    cells = [
        (one.fresh_rows, one.fresh_length, one.rows, middle(one.input_length, one.iterations), one.iterations)
        for one in batches
    ]
    return _terms(np.array(cells, dtype=np.float64))


def _terms(cells: FloatArray) -> FloatArray:
    """Terms (cells, 8) that p1 to p4 and d1 to d4 multiply, from cells (cells, 5) of rows and length of a prefill, and
    rows, columns and number of decode iterations.
    """
    fresh, length, rows, columns, iterations = cells.T
    prefill, decode = terms(fresh, length) * (fresh > 0)[:, np.newaxis], terms(rows, columns)
    return np.concatenate([prefill, decode * iterations[:, np.newaxis]], axis=1)


@dataclass(frozen=True, slots=True)
class RefitData:
    """The measurements that re-fits begin with."""

    timings: Timings
    """Measurements that the profile was fitted to."""
    earlier: tuple[ClosedBatch, ...] = ()
    """Batches that an earlier process served, the latest last."""
    model: Bilinear | None = None
    """The model fitted to both; None for the profile."""


def refit_data(profile: Bilinear, timings: Timings, earlier: Sequence[ClosedBatch] = ()) -> RefitData:
    """Data for re-fits, with the model of earlier batches. Raises as `refit`."""
    latest = tuple(earlier)[-MOST_BATCHES:]
    model = refit(profile, timings, latest)
    if model is not profile:
        _log_refit(profile, model, latest)
    return RefitData(timings, latest, model)


class RefitLessons:
    """Fits the bilinear model to closed batches. `learn` is never called twice at a time, but in whatever thread."""

    def __init__(self, estimator: BilinearEstimator, begin: RefitData) -> None:
        self._estimator = estimator
        self._timings = begin.timings
        self._batches = deque(begin.earlier, maxlen=MOST_BATCHES)
        estimator.model = begin.model or estimator.profile

    def read(self, assignment: Assignment) -> ClosedBatch | None:
        """The batch to learn from in an assignment that is over, if there is one."""
        return closed_batch(assignment)

    def learn(self, served: Sequence[ClosedBatch]) -> Lesson:
        """Fit the model again, from these batches too."""
        before = self._estimator.model
        surprise = error(before, served)
        self._batches.extend(served)
        model = refit(self._estimator.profile, self._timings, self._batches)
        self._estimator.model = model
        changed = model is not before
        if changed:
            _log_refit(before, model, self._batches)
        return Lesson(len(served), len(self._batches) if changed else 0, surprise)


def _log_refit(before: Bilinear, model: Bilinear, batches: Sequence[ClosedBatch]) -> None:
    log.info(
        "serving times re-fitted from %d batches: RMSE %.3f s, before %.3f s",
        len(batches),
        error(model, batches),
        error(before, batches),
    )
