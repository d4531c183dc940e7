"""Lengths of answers of which some were cut, so that only a lower bound of these is known.

The estimate of all of them together is Kaplan and Meier's estimate ("Nonparametric estimation from incomplete
observations", JASA 53, 1958): an answer that was cut counts among those that may still end for as long as it ran.

Recent lengths of answers: the fallback where no forest predicts, or not in time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from math import log2

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.float32]
Cut = NDArray[np.bool_]

ROUNDING = 1e-9

ORDINARY = 0.95
"""Share of the answers whose lengths are no outliers."""


def median(lengths: Lengths, cut: Cut) -> float | None:
    """The length, from (n,) of which some were cut, that half of all answers do not exceed.

    None when so many were cut that it is not known, or there are none.
    """
    ascending, left = _survival(lengths, cut)
    reached = np.flatnonzero(left <= 0.5 + ROUNDING)
    return float(ascending[reached[0]]) if len(reached) else None


def completed(lengths: Lengths, cut: Cut) -> Lengths:
    """Lengths that answers (n,) would have come to: for each that was cut, the mean of those that became longer.

    Where none that ended by itself became longer, it counts with the tokens that it has, but as no more than the
    longest of these and ORDINARY of all: an answer without an end should not tell what others are like. Where none
    ended by itself, all stay as they are.
    """
    if cut.all():
        return lengths
    ascending, left = _survival(lengths, cut)
    longest = lengths[~cut].max()
    most = max(longest, float(np.quantile(lengths, ORDINARY, method="lower")))
    share = -np.diff(left, prepend=1.0)
    beyond = np.append(np.cumsum((share * ascending)[::-1])[::-1][1:], 0.0) + left[-1] * most
    inner = ascending < longest
    means = np.where(inner, beyond / np.where(inner, left, 1.0), np.minimum(ascending, most))
    place = np.searchsorted(ascending, lengths, side="right") - 1
    return np.where(cut, means[place], lengths).astype(np.float32)


def _survival(lengths: Lengths, cut: Cut) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lengths in ascending order, and the share of answers that become longer than each."""
    order = np.lexsort((cut, lengths))  # of equal ones, those that ended by themselves come first
    at_risk = np.arange(len(lengths), 0, -1)
    factors = np.where(cut[order], 1.0, 1 - 1 / at_risk)
    return lengths[order].astype(np.float64), np.cumprod(factors, dtype=np.float64)


WINDOW = 256
"""Newest answers that count, for each instruction, for each scope and for all."""

INSTRUCTIONS = 1024
"""Instructions and scopes that are remembered; the one used least recently is forgotten first."""


class RunningMedian:
    """The median length of the newest answers, of which some were cut."""

    def __init__(self, window: int) -> None:
        self._newest: deque[tuple[int, bool]] = deque(maxlen=window)
        self._value: float | None = None
        self._current = True  # whether that is the value of these

    def add(self, length: int, cut: bool) -> None:
        self._newest.append((length, cut))
        self._current = False

    def value(self) -> float | None:
        """The median in tokens; None when so many were cut that it is not known, or there are no answers."""
        if not self._current:
            lengths, cut = zip(*self._newest, strict=True)
            self._value = median(np.array(lengths, dtype=np.float32), np.array(cut))
            self._current = True
        return self._value


class LengthHistory:
    """Lengths of finished answers by scope and instruction. Event loop only."""

    def __init__(self, instructions: int = INSTRUCTIONS) -> None:
        self._instructions = instructions
        self._all = RunningMedian(WINDOW)
        self._medians: OrderedDict[tuple[str, str | None], RunningMedian] = OrderedDict()  # None: all of a scope's

    def add(self, scope: str, instruction: str, length: int, *, cut: bool = False) -> None:
        """Add an answer of `length` tokens; one that was cut would have been longer."""
        self._all.add(length, cut)
        for key in ((scope, instruction), (scope, None)):
            self._medians.setdefault(key, RunningMedian(WINDOW)).add(length, cut)
            self._medians.move_to_end(key)
        while len(self._medians) > self._instructions:
            self._medians.popitem(last=False)

    def expect(self, scope: str, instruction: str) -> float | None:
        """The median of this instruction's answers, else of all that the scope had, else of everybody's, and of that
        no more than its power of two: whatever is asked, it is the same. None while nothing is known."""
        for key in ((scope, instruction), (scope, None)):
            own = self._medians.get(key)
            known = None if own is None else own.value()
            if known is not None:
                return known
        everybody = self._all.value()
        return None if everybody is None else 2.0 ** round(log2(everybody))
