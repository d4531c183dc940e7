"""Least squares with no coefficient below zero. It knows no unit and no model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NEGLIGIBLE = 1e-9
"""What a term may add, as a share of the largest value measured, without being worth keeping."""


def least_squares(terms: NDArray[np.float64], measured: NDArray[np.float64]) -> tuple[float, ...]:
    """Coefficients of terms (cells, terms) that come nearest to what was measured (cells,), none below zero.

    All quantities are scaled to at most 1 first, since the coefficients differ by orders of magnitude.
    """
    from scipy.optimize import curve_fit  # slow to import, and only wanted when something was measured

    scale, top = terms.max(axis=0), measured.max() or 1.0
    found, _ = curve_fit(
        lambda scaled, *coefficients: scaled @ np.array(coefficients),
        terms / scale,
        measured / top,
        p0=np.full(terms.shape[1], 0.25),
        bounds=(0.0, np.inf),
        jac=lambda scaled, *_: scaled,
        absolute_sigma=True,  # the covariance is not used, and as many cells as terms have none to estimate
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-12,
    )
    found[found < NEGLIGIBLE] = 0.0  # a bound that is touched is only ever reached nearly
    return tuple(float(value) for value in found * top / scale)
