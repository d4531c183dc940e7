"""Recent lengths of answers: the fallback where no forest predicts, or not in time."""

from __future__ import annotations

from collections import OrderedDict, deque
from math import log2

import numpy as np

from scheduler.length.censored import median

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
