"""A quantile of the numbers that came last. Knows not what they are."""

from __future__ import annotations

import bisect
from collections import deque


class Recent:
    """The last `count` numbers, sorted at all times."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, number: float) -> None:
        self._order.append(number)
        bisect.insort(self._sorted, number)
        if len(self._order) > self._count:
            del self._sorted[bisect.bisect_left(self._sorted, self._order.popleft())]

    def quantile(self, share: float) -> float:
        """The number that this share of the others does not exceed, by the nearest rank below; 0 before the first."""
        return self._sorted[int(share * (len(self._sorted) - 1))] if self._sorted else 0.0
