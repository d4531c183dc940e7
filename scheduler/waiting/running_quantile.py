"""Quantiles of the numbers that came last."""

from __future__ import annotations

import bisect
from collections import deque


class RunningQuantile:
    """Quantiles of the last `count` numbers, which are sorted at all times."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, number: float) -> None:
        """Add a number, and forget the oldest if there are too many."""
        self._latest.append(number)
        bisect.insort(self._sorted, number)
        if len(self._latest) > self._count:
            del self._sorted[bisect.bisect_left(self._sorted, self._latest.popleft())]

    def quantile(self, share: float) -> float:
        """The number that this share of the others does not exceed, by the nearest rank below; 0 before the first."""
        return self._sorted[int(share * (len(self._sorted) - 1))] if self._sorted else 0.0
