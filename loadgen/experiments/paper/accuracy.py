"""The sigma of the log-normal error that makes a simulated predictor as good as a paper's.

A prediction is the true length times exp(sigma·z + sigma²/2), as loadgen.simulate.prediction has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from models.errors import UserError

WORST = 4.0
"""A sigma that no predictor worth simulating has."""
STEPS = 40
"""Halvings of the range of sigma."""
TOLERANCE = 0.02
"""Distance from a wanted accuracy up to which it is had; one request more or less of a short trace is too little."""

Floats = NDArray[np.float64]


def sigma_for_rmse(lengths: Sequence[int], rmse: float) -> float:
    """The sigma at which predictions are `rmse` tokens off, as a root mean square, before they are clipped."""
    true = np.asarray(lengths, dtype=np.float64)
    errors = _draw_errors(len(true))

    def error(sigma: float) -> float:
        return float(np.sqrt(np.mean((_predict(true, sigma, errors) - true) ** 2)))

    return _bisect(lambda sigma: error(sigma) < rmse)


def sigma_for_accuracy(lengths: Sequence[int], cuts: Sequence[float], accuracy: float) -> float:
    """The sigma at which this share of predictions falls into the class of the true length; these quantiles of the
    lengths part the classes. Raises UserError where too many lengths are equal for that.
    """
    true = np.asarray(lengths, dtype=np.float64)
    errors = _draw_errors(len(true))
    bounds = np.quantile(true, cuts)
    actual = np.searchsorted(bounds, true, side="right")

    def right(sigma: float) -> float:
        return float(np.mean(np.searchsorted(bounds, _predict(true, sigma, errors), side="right") == actual))

    found = _bisect(lambda sigma: right(sigma) > accuracy)
    if abs(right(found) - accuracy) > TOLERANCE + 1 / len(true):
        raise UserError(
            f"no predictor of these {len(true)} answers puts {accuracy:.1%} of them into the right one of "
            f"{len(cuts) + 1} classes, as the paper's does: too many are of one length; take another trace"
        )
    return found


def _draw_errors(count: int) -> Floats:
    """Evenly spread normal errors, shuffled so that they have nothing to do with the lengths."""
    normal = NormalDist()
    errors = np.array([normal.inv_cdf((place + 0.5) / count) for place in range(count)])
    np.random.default_rng(0).shuffle(errors)
    return errors


def _predict(true: Floats, sigma: float, errors: Floats) -> Floats:
    return true * np.exp(sigma * errors + sigma**2 / 2)


def _bisect(too_good: Callable[[float], bool]) -> float:
    low, high = 0.0, WORST
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_good(middle) else (low, middle)
    return high
