"""The bilinear serving-time model again, from its profile and from batches that were served: pure arithmetic.

Whatever was measured is one linear equation in the eight coefficients of prefill and decode: a cell of a profile in
four of them, a slice or a batch in all. They are solved together by least squares, each divided by what was measured,
since an iteration, a prefill and a slice differ a hundredfold: so relative errors count, and a batch that stalled,
however long, is not further off than by 1. What copies take is left as the profile has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import isfinite

import numpy as np

from engine.measure.timing import Timings
from scheduler.serving_time.bilinear import Bilinear, FloatArray, middle, rmse, terms
from scheduler.serving_time.closed_batch import ClosedBatch
from scheduler.serving_time.least_squares import least_squares

FEWEST = 16
"""Batches that say something: a slow minute must not speak for a machine."""

WORTH = 16
"""Batches that a whole profile counts as much as: enough to decide what batches leave open, and not what they tell."""


def refit(profile: Bilinear, timings: Timings, batches: Sequence[ClosedBatch]) -> Bilinear:
    """The model of what was measured for the profile and of what batches took; the profile itself where these are fewer
    than FEWEST, or where it explains them better.

    The profile speaks for lengths and sizes that no batch had: all its timings together count as much as WORTH batches,
    and at the pace that batches have now, which is the median of how much longer they took than it says. Else a machine
    that became slower would seem to be so for some lengths only. Raises ValueError or RuntimeError where no model can
    be found.
    """
    measured = [batch for batch in batches if batch.seconds > 0]
    if len(measured) < FEWEST:
        return profile
    own, seconds = _profiled(timings)
    told, left = _served(measured), np.array([one.seconds - one.copies(profile) for one in measured])
    taken = np.array([one.seconds for one in measured])
    share = np.sqrt(WORTH / max(1, len(own)))
    weights = np.concatenate([share / (_pace(profile, measured) * seconds), 1 / taken])
    values = np.concatenate([np.full(len(own), share), left / taken])
    found = least_squares(np.concatenate([own, told]) * weights[:, np.newaxis], values)
    if not all(map(isfinite, found)):
        return profile
    p1, p2, p3, p4, d1, d2, d3, d4 = found
    model = replace(profile, p1=p1, p2=p2, p3=p3, p4=p4, d1=d1, d2=d2, d3=d3, d4=d4)
    return model if relative_error(model, measured) <= relative_error(profile, measured) else profile


def error(model: Bilinear, batches: Sequence[ClosedBatch]) -> float:
    """Root-mean-square error of a model over batches, one at least, in seconds."""
    return rmse([(one.estimate(model), one.seconds) for one in batches])


def relative_error(model: Bilinear, batches: Sequence[ClosedBatch]) -> float:
    """The same as a share of what each took, which must not be 0."""
    return rmse([(one.estimate(model) / one.seconds, 1.0) for one in batches])


def _pace(profile: Bilinear, batches: Sequence[ClosedBatch]) -> float:
    """How many times as long as by the profile batches take, copies aside; 1 where that is no number above 0."""
    copies = [one.copies(profile) for one in batches]
    ratios = [
        (one.seconds - copied) / (estimate - copied)
        for one, copied in zip(batches, copies, strict=True)
        if (estimate := one.estimate(profile)) > copied
    ]
    pace = float(np.median(ratios)) if ratios else 1.0
    return pace if pace > 0 and isfinite(pace) else 1.0


def _profiled(timings: Timings) -> tuple[FloatArray, FloatArray]:
    """Terms (cells, 8) and seconds (cells,) of all that was measured for a profile, except for copies."""
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
    """Terms (batches, 8) of batches."""
    cells = [
        (one.fresh_rows, one.fresh_length, one.rows, middle(one.input_length, one.iterations), one.iterations)
        for one in batches
    ]
    return _terms(np.array(cells, dtype=np.float64))


def _terms(cells: FloatArray) -> FloatArray:
    """What p1 to p4 and d1 to d4 multiply, (cells, 8), by rows and length of a prefill, none without rows, and by rows,
    columns and number of decode iterations.
    """
    fresh, length, rows, columns, iterations = cells.T
    prefill, decode = terms(fresh, length) * (fresh > 0)[:, np.newaxis], terms(rows, columns)
    return np.concatenate([prefill, decode * iterations[:, np.newaxis]], axis=1)
