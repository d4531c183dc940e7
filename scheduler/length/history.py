"""Recent lengths of answers: the fallback where no forest predicts, or not in time."""

from __future__ import annotations

from collections import OrderedDict, deque

import numpy as np

from scheduler.length.censored import median

WINDOW = 256
"""Newest answers that count, for each instruction and for all."""

INSTRUCTIONS = 1024
"""Instructions that are remembered; the one used least recently is forgotten first."""


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
    """Lengths of finished answers by instruction. Event loop only."""

    def __init__(self, window: int = WINDOW, instructions: int = INSTRUCTIONS) -> None:
        self._window = window
        self._instructions = instructions
        self._all = RunningMedian(window)
        self._by_instruction: OrderedDict[str, RunningMedian] = OrderedDict()

    def add(self, instruction: str, length: int, *, cut: bool = False) -> None:
        """Add an answer of `length` tokens; one that was cut would have been longer."""
        self._all.add(length, cut)
        own = self._by_instruction.setdefault(instruction, RunningMedian(self._window))
        own.add(length, cut)
        self._by_instruction.move_to_end(instruction)
        if len(self._by_instruction) > self._instructions:
            self._by_instruction.popitem(last=False)

    def expect(self, instruction: str) -> float | None:
        """The median of this instruction's answers, else of all; None while neither is known."""
        own = self._by_instruction.get(instruction)
        known = None if own is None else own.value()
        return self._all.value() if known is None else known
