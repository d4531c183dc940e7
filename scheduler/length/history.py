"""What answers were long of late: the fallback where no forest predicts, or not in time."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque

WINDOW = 256
"""Newest answers that count, for each instruction and for all."""

INSTRUCTIONS = 1024
"""Instructions that are remembered; the one longest unheard of is forgotten first."""


class RunningQuantile:
    """A quantile of the newest values."""

    def __init__(self, quantile: float, window: int) -> None:
        self._quantile = quantile
        self._window = window
        self._arrived: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, value: int) -> None:
        if len(self._arrived) == self._window:
            del self._sorted[bisect_left(self._sorted, self._arrived.popleft())]
        self._arrived.append(value)
        insort(self._sorted, value)

    def value(self) -> int | None:
        """The least value that at least this share of the others does not exceed; None when there are none."""
        if not self._sorted:
            return None
        return self._sorted[min(len(self._sorted) - 1, int(self._quantile * len(self._sorted)))]


class LengthHistory:
    """Lengths of finished answers by instruction. Event loop only."""

    def __init__(self, quantile: float = 0.5, window: int = WINDOW, instructions: int = INSTRUCTIONS) -> None:
        if not 0 <= quantile <= 1:
            raise ValueError(f"a quantile lies between 0 and 1, not at {quantile}")
        self._quantile = quantile
        self._window = window
        self._instructions = instructions
        self._all = RunningQuantile(quantile, window)
        self._by_instruction: OrderedDict[str, RunningQuantile] = OrderedDict()

    def add(self, instruction: str, length: int) -> None:
        """An answer has ended with `length` tokens."""
        self._all.add(length)
        own = self._by_instruction.setdefault(instruction, RunningQuantile(self._quantile, self._window))
        own.add(length)
        self._by_instruction.move_to_end(instruction)
        if len(self._by_instruction) > self._instructions:
            self._by_instruction.popitem(last=False)

    def expect(self, instruction: str) -> int | None:
        """The quantile of this instruction's answers, else of all; None when nothing has ended yet."""
        own = self._by_instruction.get(instruction, self._all)
        return own.value()
