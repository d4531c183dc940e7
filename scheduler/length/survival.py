"""The share of values beyond each, where some are only known to be greater (Kaplan and Meier, JASA 53, 1958)."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

ROUNDING = 1e-9  # of shares


def survival(values: NDArray[np.floating], cut: NDArray[np.bool_], unseen: int = 0) -> tuple[FloatArray, FloatArray]:
    """Values (n,) in ascending order, and the shares; `unseen` others are at risk throughout."""
    order = np.lexsort((cut, values))  # ties: whole ones first
    at_risk = np.arange(len(values), 0, -1) + unseen
    factors = np.where(cut[order], 1.0, 1 - 1 / at_risk)
    return values[order].astype(np.float64), np.cumprod(factors, dtype=np.float64)
