"""SCLS's serving-time model: two bilinear surfaces, fitted to what was measured on a device (SCLS, section 4.2).

    T_prefill(N, L)   = p1·N·L + p2·N + p3·L + p4                          equation 3
    τ_decode(l, N)    = d1·N·l + d2·N + d3·l + d4                          equation 4
    T_serve(N, L, S)  = T_prefill(N, L) + Σ_{l=1..S} τ_decode(L + l, N)    equations 1 and 2

and two things that the paper has not. T_prefill has p5·N·L² besides, since attention reads all that was read before:
without it a fit to 2,048 tokens is a fifth too dear at 200 and a third too cheap at its end, and one to short prompts
says something else. And a line: what K and V of a row cost that go to host memory and come back, instead of being
computed again (the authors are "trying" that, section 7).

    T_copy(L)         = c1·L + c0

It does not know who measures or where a fit is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from math import isfinite
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.measure.timing import Timing, Timings
from engine.messages import NEVER

FloatArray: TypeAlias = NDArray[np.float64]

Quantity = TypeVar("Quantity", float, FloatArray)

LEAST_SECONDS = 1e-9

MANY = 8  # rows that must make clearly more tokens a second than one

TYPICAL_TOKENS = 512  # of a row, where speeds are compared

LEAST_GAIN = 1.1  # how many times as many tokens a second MANY rows must make

RIDGE = 1e-5
"""Weight, beside a cell's 1, with which least squares prefers small coefficients."""

RIDGES = (RIDGE, 1e-3, 1e-3, RIDGE, 0.3)
"""Weights for the terms of a surface. Where prompts are read one at a time, nothing parts what a row costs from what a
pass does, nor a column from a cell: it is the pass, which reads the weights once, and the cell. From the noise of short
prompts a square would be carried far."""


class ServingTime(ABC):
    """Estimates serving times in seconds, of batches known by rows, input length L(B) and generation length G(B)."""

    def estimate(self, rows: int, input_length: int, generation_length: int) -> float:
        """Seconds from the prefill of a batch to its last token."""
        return float(self.estimate_all(np.array([[rows, input_length, generation_length]], dtype=np.float64))[0])

    @abstractmethod
    def estimate_all(self, batches: FloatArray) -> FloatArray:
        """Seconds of many batches at once: (batches, 3) in the order of `estimate` -> (batches,)."""


@dataclass(frozen=True, slots=True)
class Bilinear(ServingTime):
    """Seconds as a function of rows N, input length L and decode iterations S: numbers, or arrays that broadcast.

    No coefficient is negative: a row or a column more never costs less, and no estimate is below zero, inside the
    measured range or outside. Raises ValueError for others. Copies cost nothing (c1 = c0 = 0) where they were never
    measured, as on the papers' machines; then nothing is ever cheaper than keeping K and V.
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

    def slowed(self, factor: float) -> Bilinear:
        """The model of a machine that takes `factor` times as long."""
        return Bilinear(*(factor * value for value in astuple(self)))

    @property
    def gains_by_rows(self) -> bool:
        """Whether more rows make more tokens a second, as on any machine: a step reads the weights once for all."""
        return MANY * self.iteration(1.0, TYPICAL_TOKENS) > LEAST_GAIN * self.iteration(float(MANY), TYPICAL_TOKENS)

    def prefill(self, rows: Quantity, length: Quantity | float) -> Quantity:
        """T_prefill: seconds to prefill `rows` prompts of `length` tokens, up to their first tokens."""
        return ((self.p5 * length + self.p1) * rows + self.p3) * length + self.p2 * rows + self.p4

    def iteration(self, rows: Quantity, columns: Quantity | float) -> Quantity:
        """τ_decode: seconds of one iteration that reads `columns` columns, the new one included."""
        return (self.d1 * rows + self.d3) * columns + self.d2 * rows + self.d4

    def decode(self, rows: Quantity, length: Quantity | float, iterations: Quantity | float) -> Quantity:
        """Seconds of `iterations` decode iterations after `length` tokens, summed in closed form.

        The surface is linear in the columns, so the sum is that many times the iteration in the middle.
        """
        return iterations * self.iteration(rows, middle(length, iterations))

    def serve(self, rows: Quantity, length: Quantity | float, iterations: Quantity | float) -> Quantity:
        """T_serve: seconds of a batch from its prefill to the end of its last iteration."""
        return self.prefill(rows, length) + self.decode(rows, length, iterations)

    def copy(self, length: Quantity) -> Quantity:
        """T_copy: seconds to copy K and V of a row of `length` tokens out to host memory and in again."""
        return self.c1 * length + self.c0

    def estimate_all(self, batches: FloatArray) -> FloatArray:
        seconds: FloatArray = self.serve(batches[:, 0], batches[:, 1], batches[:, 2])
        return seconds


@lru_cache(maxsize=16)
def kept_from(model: Bilinear) -> int:
    """Tokens from which copying a row's KV cache takes no longer than what the row adds to a prefill of its length,
    p5·L² + p1·L + p2; NEVER where copying a token takes longer than reading it.
    """
    return bisect_left(
        range(NEVER), True, key=lambda length: (model.p5 * length + model.p1) * length + model.p2 >= model.copy(length)
    )


def middle(length: Quantity | float, iterations: Quantity | float) -> Quantity | float:
    """Columns that the middle one of so many iterations after `length` tokens reads."""
    return length + (iterations + 1) / 2


@dataclass(frozen=True, slots=True)
class FitErrors:
    """Root-mean-square errors of a model in seconds, as in SCLS, figure 10; None where nothing was measured."""

    prefill: float
    iteration: float
    slices: float | None
    copies: float | None = None
    """Error for one row's K and V, copied both ways."""


def fit(prefill: Sequence[Timing], decode: Sequence[Timing], copies: Sequence[Timing] | None = None) -> Bilinear:
    """Least squares over what was measured, no coefficient below zero; copies are None where they were not measured.

    The bound is what keeps estimates from being negative: attention makes prefill grow faster than its length, and an
    unbounded plane through that dips below zero at the short end. Raises ValueError when the timings are too few.
    """
    return fit_surfaces(_check(prefill, "prefill"), _check(decode, "decode"), () if copies is None else _line(copies))


def fit_surfaces(prefill: Sequence[Timing], decode: Sequence[Timing], copies: Sequence[float] = ()) -> Bilinear:
    """The model that comes nearest to timings, one of each at least, with the c1 and c0 of `copies`; relative errors
    count.

    Where timings leave open what rows cost and what columns do, RIDGES decide.
    """
    *read, square = surface(prefill, squares=True)
    return replace(Bilinear(*read, *surface(decode), *copies), p5=square)


def fit_errors(model: Bilinear, timings: Timings) -> FitErrors:
    """Errors of a model against what was measured."""
    copied = [(model.copy(one.length), one.seconds / one.rows) for one in timings.copies]
    served = [(model.serve(one.rows, one.length, one.iterations), one.seconds) for one in timings.slices]
    return FitErrors(
        prefill=rmse([(model.prefill(one.rows, one.length), one.seconds) for one in timings.prefill]),
        iteration=rmse([(model.iteration(one.rows, one.length), one.seconds) for one in timings.decode]),
        slices=rmse(served) if served else None,
        copies=rmse(copied) if copied else None,
    )


def rmse(pairs: Sequence[tuple[float, float]]) -> float:
    """Root of the mean squared difference between the two of each pair (estimated, measured)."""
    estimated, measured = np.asarray(pairs, dtype=np.float64).T
    return float(np.sqrt(np.mean((estimated - measured) ** 2)))


def surface(timings: Sequence[Timing], *, squares: bool = False) -> tuple[float, ...]:
    """The four coefficients of a surface, and with `squares` that of N·L²."""
    rows, length, seconds = _columns(timings)
    square = [rows * length**2] if squares else []
    least = 0.0 if squares else float(np.median(seconds))  # iterations differ less than prefills
    return least_squares(np.column_stack([terms(rows, length), *square]), seconds, RIDGES, least)


def _check(timings: Sequence[Timing], what: str) -> Sequence[Timing]:
    """Timings that determine a surface; raises ValueError for others."""
    rows, length, _ = _columns(timings)
    if len(timings) < 4 or np.linalg.matrix_rank(terms(rows, length)) < 4:
        raise ValueError(
            f"{len(timings)} {what} timings do not determine a model: two batch sizes at two lengths each are needed"
        )
    return timings


def _line(timings: Sequence[Timing]) -> tuple[float, ...]:
    """The fitted c1 and c0, for the seconds of copying a row by its length."""
    rows, length, seconds = _columns(timings)
    if len(set(length.tolist())) < 2:
        raise ValueError(f"{len(timings)} timings of copies do not determine a model: two lengths are needed")
    return least_squares(np.stack([length, np.ones_like(length)], axis=1), seconds / rows, (RIDGE, RIDGE))


def _columns(timings: Sequence[Timing]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Rows, lengths and seconds of timings, (timings,) each."""
    columns = np.array([astuple(one) for one in timings], dtype=np.float64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def terms(rows: FloatArray, length: FloatArray) -> FloatArray:
    """The terms that the coefficients of a surface multiply: (cells, 4)."""
    return np.stack([rows * length, rows, length, np.ones_like(rows)], axis=1)


def least_squares(
    terms: FloatArray, measured: FloatArray, ridges: Sequence[float], least: float = 0.0
) -> tuple[float, ...]:
    """Coefficients, none below zero, with which terms (cells, count) come nearest to what was measured (cells,).

    Each cell is divided by its measurement, since a step and a prefill differ a thousandfold, and each term by its
    largest, since coefficients differ by orders of magnitude. Cells of no time that a clock can tell are left out.
    `ridges` hold a weight for each term; further ones are not looked at.
    Cells of less than `least` seconds are divided by `least`, so that a few that are far too small do not rule.
    """
    from scipy.optimize import nnls  # slow to import, and only wanted when something was measured

    seen = measured > LEAST_SECONDS
    divisors = np.maximum(measured[seen], least)
    shares = terms[seen] / divisors[:, np.newaxis]
    scale = shares.max(axis=0, initial=0.0)
    scale[scale == 0] = 1.0
    count = shares.shape[1]
    ridge = np.diag(ridges[:count])  # parts what the cells cannot tell apart
    rows = np.concatenate([shares / scale, ridge])
    found, _ = nnls(rows, np.concatenate([measured[seen] / divisors, np.zeros(count)]))
    return tuple(float(value) for value in found / scale)
