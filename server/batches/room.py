"""The room that files have, and how much of it each holder of a key has taken."""

from __future__ import annotations

import threading
from collections import Counter

MOST_FILES = 10_000
"""Files of all holders."""


class Room:
    """One key of several has half of everything at most, so that it cannot keep the others out. For any thread."""

    def __init__(self, capacity: int) -> None:
        """`capacity` in bytes."""
        self._capacity = capacity
        self._bytes: Counter[str | None] = Counter()
        self._files: Counter[str | None] = Counter()
        self._lock = threading.Lock()

    def take(self, holder: str | None, count: int, files: int = 0) -> None:
        """Count bytes and files of a holder; what is less than 0 is given back."""
        with self._lock:
            self._bytes[holder] += count
            self._files[holder] += files

    def left(self, holder: str | None, times: int = 1) -> int:
        """Bytes that a holder may still take of so many times the capacity; none where there are too many files."""
        part = 1 if holder is None else 2
        with self._lock:
            if self._files[holder] >= MOST_FILES // part or self._files.total() >= MOST_FILES:
                return 0
            own = times * self._capacity // part - self._bytes[holder]
            return max(0, min(own, times * self._capacity - self._bytes.total()))
