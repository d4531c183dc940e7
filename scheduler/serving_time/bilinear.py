"""SCLS's serving-time model, two bilinear surfaces fitted to a device's timings (SCLS, section 4.2).

T_prefill(N, L)   = p1·N·L + p2·N + p3·L + p4 + p5·N·L²                equation 3, and attention's square
τ_decode(l, N)    = d1·N·l + d2·N + d3·l + d4                          equation 4
T_serve(N, L, S)  = T_prefill(N, L) + Σ_{l=1..S} τ_decode(L + l, N)    equations 1 and 2
T_copy(L)         = c1·L + c0                                          KV cache of a row to host memory and back
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from math import isfinite
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.measure.timing import Timing, Timings
from engine.messages import NEVER

FloatArray = NDArray[np.float64]

Quantity = TypeVar("Quantity", float, FloatArray)

LEAST_SECONDS = 1e-9

MANY = 8  # rows that must clearly beat one row's throughput

TYPICAL_TOKENS = 512  # row length where speeds are compared

LEAST_GAIN = 1.1  # least ratio of their throughputs

RIDGE = 1e-5  # regularisation, beside a cell's 1

# by term; where prompts are prefilled singly, rows and passes, or columns and cells, are collinear
RIDGES = (RIDGE, 1e-3, 1e-3, RIDGE, 0.3)


class ServingTime(ABC):
    """Serving times of batches by rows, input length L(B) and generation length G(B)."""

    def estimate(self, rows: int, input_length: int, generation_length: int) -> float:
        return float(self.estimate_all(np.array([[rows, input_length, generation_length]], dtype=np.float64))[0])

    @abstractmethod
    def estimate_all(self, batches: FloatArray) -> FloatArray:
        """(batches, 3) in the order of `estimate` -> (batches,)."""


@dataclass(frozen=True, slots=True)
class Bilinear(ServingTime):
    """Seconds by rows N, input length L and iterations S, which may broadcast. Raises ValueError for negative
    coefficients. Copies that were never measured are free (c1 = c0 = 0).
    """

    p1: float = 0.0
    p2: float = 0.0
    p3: float = 0.0
    p4: float = 0.0
    d1: float = 0.0
    d2: float = 0.0
    d3: float = 0.0
    d4: float = 0.0
    c1: float = 0.0
    c0: float = 0.0
    p5: float = 0.0

    def __post_init__(self) -> None:
        if not all(isfinite(value) and value >= 0 for value in astuple(self)):
            raise ValueError(f"the coefficients of a serving-time model must be finite and not negative: {self}")

    def slowed(self, factor: float) -> Self:
        return type(self)(*(factor * value for value in astuple(self)))

    @property
    def gains_by_rows(self) -> bool:
        """Whether throughput rises with rows, as on any real machine."""
        return MANY * self.iteration(1.0, TYPICAL_TOKENS) > LEAST_GAIN * self.iteration(float(MANY), TYPICAL_TOKENS)

    def prefill(self, rows: Quantity, length: Quantity | float) -> Quantity:
        """T_prefill: seconds to the first tokens."""
        return ((self.p5 * length + self.p1) * rows + self.p3) * length + self.p2 * rows + self.p4

    def iteration(self, rows: Quantity, columns: Quantity | float) -> Quantity:
        """τ_decode: seconds; `columns` include the new one."""
        return (self.d1 * rows + self.d3) * columns + self.d2 * rows + self.d4

    def decode(self, rows: Quantity, length: Quantity | float, iterations: Quantity | float) -> Quantity:
        """Closed form: as many times the middle iteration."""
        return iterations * self.iteration(rows, length + (iterations + 1) / 2)

    def serve(self, rows: Quantity, length: Quantity | float, iterations: Quantity | float) -> Quantity:
        """T_serve, in seconds."""
        return self.prefill(rows, length) + self.decode(rows, length, iterations)

    def copy(self, length: Quantity) -> Quantity:
        """T_copy: seconds to host memory and back."""
        return self.c1 * length + self.c0

    def estimate_all(self, batches: FloatArray) -> FloatArray:
        return self.serve(batches[:, 0], batches[:, 1], batches[:, 2])


@lru_cache(maxsize=16)
def kept_from(model: Bilinear) -> int:
    """Tokens from which copying a row's KV cache takes no longer than what the row adds to a prefill of its length,
    p5·L² + p1·L + p2; NEVER where copying a token takes longer than reading it.
    """
    return bisect_left(
        range(NEVER), True, key=lambda length: (model.p5 * length + model.p1) * length + model.p2 >= model.copy(length)
    )


@dataclass(frozen=True, slots=True)
class FitErrors:
    """RMSE in seconds, as in SCLS, figure 10; None where not measured."""

    prefill: float
    iteration: float
    slices: float | None
    copies: float | None = None


def fit(prefill: Sequence[Timing], decode: Sequence[Timing], copies: Sequence[Timing] | None = None) -> Bilinear:
    """Non-negative least squares, since an unbounded plane dips below zero for short prompts. Raises ValueError for
    too few timings.
    """
    measured = _check(prefill, "prefill"), _check(decode, "decode")
    if copies is None:
        return fit_surfaces(*measured)
    rows, length, seconds = _columns(copies)
    if len(set(length.tolist())) < 2:
        raise ValueError(f"{len(copies)} timings of copies do not determine a model: two lengths are needed")
    line = least_squares(np.stack([length, np.ones_like(length)], axis=1), seconds / rows, (RIDGE, RIDGE))  # c1 and c0
    return fit_surfaces(*measured, line)


def fit_surfaces(prefill: Sequence[Timing], decode: Sequence[Timing], copies: Sequence[float] = ()) -> Bilinear:
    """The best fit by relative error, given c1 and c0; RIDGES decide what timings leave open."""
    *read, square = surface(prefill, squares=True)
    return replace(Bilinear(*read, *surface(decode), *copies), p5=square)


def fit_errors(model: Bilinear, timings: Timings) -> FitErrors:
    copied = [(model.copy(one.length), one.seconds / one.rows) for one in timings.copies]
    served = [(model.serve(one.rows, one.length, one.iterations), one.seconds) for one in timings.slices]
    read = [(model.prefill(one.rows, one.length), one.seconds) for one in timings.prefill]
    stepped = [(model.iteration(one.rows, one.length), one.seconds) for one in timings.decode]
    return FitErrors(rmse(read), rmse(stepped), rmse(served) if served else None, rmse(copied) if copied else None)


def rmse(pairs: Sequence[tuple[float, float]]) -> float:
    """Of pairs (estimated, measured)."""
    estimated, measured = np.asarray(pairs, dtype=np.float64).T
    return float(np.sqrt(np.mean((estimated - measured) ** 2)))


def surface(timings: Sequence[Timing], *, squares: bool = False) -> tuple[float, ...]:
    """Four coefficients, and with `squares` that of N·L²."""
    rows, length, seconds = _columns(timings)
    square = [rows * length**2] if squares else []
    least = 0.0 if squares or not timings else float(np.median(seconds))  # iterations vary less than prefills
    return least_squares(np.column_stack([terms(rows, length), *square]), seconds, RIDGES, least)


def _check(timings: Sequence[Timing], what: str) -> Sequence[Timing]:
    """Raises ValueError for timings that do not determine a surface."""
    rows, length, _ = _columns(timings)
    if len(timings) < 4 or np.linalg.matrix_rank(terms(rows, length)) < 4:
        raise ValueError(
            f"{len(timings)} {what} timings do not determine a model: two batch sizes at two lengths each are needed"
        )
    return timings


def _columns(timings: Sequence[Timing]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Rows, lengths and seconds, (timings,) each."""
    columns = np.array([astuple(one) for one in timings], dtype=np.float64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def terms(rows: FloatArray, length: FloatArray) -> FloatArray:
    """(cells, 4)."""
    return np.stack([rows * length, rows, length, np.ones_like(rows)], axis=1)


def least_squares(
    terms: FloatArray, measured: FloatArray, ridges: Sequence[float], least: float = 0.0
) -> tuple[float, ...]:
    """Non-negative coefficients for terms (cells, count) and measurements (cells,), by relative error; cells under
    `least` seconds count as `least`, those of zero are ignored.
    """
    from scipy.optimize import nnls  # slow to import

    seen = measured > LEAST_SECONDS
    divisors = np.maximum(measured[seen], least)
    shares = terms[seen] / divisors[:, np.newaxis]
    scale = shares.max(axis=0, initial=0.0)
    scale[scale == 0] = 1.0
    count = shares.shape[1]
    rows = np.concatenate([shares / scale, np.diag(ridges[:count])])
    found, _ = nnls(rows, np.concatenate([measured[seen] / divisors, np.zeros(count)]))
    return tuple(float(value) for value in found / scale)
