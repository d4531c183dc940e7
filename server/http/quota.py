"""The quota of each holder of a key: so many requests in any minute, and so many at a time.

It knows no HTTP; time is passed in.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

WINDOW = 60.0
"""Seconds in which arrivals are counted."""

RETRY_AFTER = 1.0
"""Seconds after which one who has too many requests under way may try again: when one of them ends is unknown."""


class QuotaExceeded(Exception):
    """The message says which limit; `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(slots=True)
class _Use:
    arrivals: deque[float] = field(default_factory=deque)
    under_way: int = 0


class Quota:
    """Counts exactly, so its memory is bounded by what it lets through in a minute."""

    def __init__(self, requests_per_minute: int | None = None, max_concurrent: int | None = None) -> None:
        self._per_minute = requests_per_minute
        self._concurrent = max_concurrent
        self._uses: defaultdict[str, _Use] = defaultdict(_Use)

    def enter(self, holder: str, now: float) -> None:
        """A request begins. Raises QuotaExceeded; one that is refused counts for nothing."""
        use = self._uses[holder]
        if self._concurrent is not None and use.under_way >= self._concurrent:
            message = f"{use.under_way} requests of this key are under way, as many as it may have at a time"
            raise QuotaExceeded(message, RETRY_AFTER)
        self._count(use, now)
        use.under_way += 1

    def leave(self, holder: str) -> None:
        """A request that was let in is over."""
        self._uses[holder].under_way -= 1

    def _count(self, use: _Use, now: float) -> None:
        if self._per_minute is None:
            return
        while use.arrivals and use.arrivals[0] <= now - WINDOW:
            use.arrivals.popleft()
        if len(use.arrivals) >= self._per_minute:
            message = f"this key has made {self._per_minute} requests in a minute, as many as it may"
            raise QuotaExceeded(message, use.arrivals[0] + WINDOW - now)
        use.arrivals.append(now)
