"""SCLS's Algorithm 1: how to part rows into batches so that all of them together take the least time (section 4.4).

Pure arithmetic on lengths. It knows neither requests nor executors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from scheduler.serving_time.bilinear import Bilinear, FloatArray

IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Part:
    """The rows `start` to `stop`, without the latter, as one batch that takes `seconds`."""

    start: int
    stop: int
    seconds: float


def partition(
    lengths: IntArray, fresh: BoolArray, model: Bilinear, *, iterations: int, most_rows: IntArray
) -> tuple[Part, ...]:
    """The contiguous parts of least total serving time, in order.

    `lengths` (rows,) are tokens so far, ascending; `fresh` (rows,) says which rows are to be prefilled, the others
    bring their K and V with them. A part that ends with a row has at most as many rows as `most_rows` (rows,) says
    there, one at least. What is copied costs the same in whatever parts, so it is in their seconds but not weighed.

        T[i] = min over j of T[j-1] + T_serve(i-j+1, L_i, S)                         (equation 10)

    For each i all j are weighed at once, in the worst case the paper's O(n²). T_serve of the rows k+1 to i is
    a·(i - k) + b for decode and, if any of them is fresh, p·(F_i - F_k) + q for prefill, where F_k of the first k
    rows are fresh; so the k to choose is that of the least T[k] - a·k - p·F_k, with q added where a fresh row follows.
    """
    stops = np.arange(1, len(lengths) + 1)
    lows = np.maximum(stops - np.maximum(most_rows, 1), 0)
    last_fresh = np.maximum.accumulate(np.where(fresh, stops, 0))
    weights, constant, prefill = _costs(lengths, fresh, model, iterations)
    first = np.zeros((3, len(lengths) + 1))  # of the first k rows: their least time, how many they are, how many fresh
    first[1, 1:], first[2, 1:] = stops, np.cumsum(fresh)
    ends = constant - (weights[:, 1:] * first[1:, 1:].T).sum(axis=1)
    cuts = [0]
    for row, (low, follows, rest, end) in enumerate(
        zip(lows.tolist(), last_fresh.tolist(), prefill.tolist(), ends.tolist(), strict=True)
    ):
        totals = weights[row] @ first[:, low : row + 1]
        totals[: max(0, follows - low)] += rest
        best = int(totals.argmin())
        cuts.append(low + best)
        first[0, row + 1] = totals[best] + end
    return _parts(cuts, lengths, fresh, model, iterations)


def slice_seconds(lengths: IntArray, fresh: BoolArray, model: Bilinear, iterations: int) -> float:
    """T_serve of one batch: prefill of its fresh rows, padded to the longest of them, copies of the others' K and V,
    and `iterations` of all rows.

    A copy is both ways, out after the slice before this one and in again, so that every copy is counted once.
    """
    seconds = model.decode(len(lengths), int(lengths.max()), iterations)
    prompts, copied = lengths[fresh], lengths[~fresh].astype(np.float64)
    if len(prompts):
        seconds += model.prefill(len(prompts), int(prompts.max()))
    return seconds + float(model.copy(copied).sum())


def _costs(
    lengths: IntArray, fresh: BoolArray, model: Bilinear, iterations: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds of a batch that ends with each row, as lines over its rows.

    Returns the weights (rows, 3) of T, k and F in the sum above, and the constants b and q (rows,).
    """
    columns = lengths.astype(np.float64)
    longest = np.maximum.accumulate(np.where(fresh, columns, 0.0))  # what its prefill is padded to
    none, one = np.zeros_like(columns), np.ones_like(columns)
    constant, prefill = model.decode(none, columns, iterations), model.prefill(none, longest)
    slopes = (constant - model.decode(one, columns, iterations), prefill - model.prefill(one, longest))
    return np.stack((one, *slopes), axis=1), constant, prefill


def _parts(cuts: list[int], lengths: IntArray, fresh: BoolArray, model: Bilinear, iterations: int) -> tuple[Part, ...]:
    """Follow the cuts back from the last row: `cuts[i]` is where the last part of the first i rows begins."""
    parts: list[Part] = []
    stop = len(lengths)
    while stop > 0:
        rows = slice(cuts[stop], stop)
        parts.append(Part(rows.start, stop, slice_seconds(lengths[rows], fresh[rows], model, iterations)))
        stop = rows.start
    return tuple(reversed(parts))
