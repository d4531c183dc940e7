"""The quota of each holder of a key: so many requests and tokens in any minute, and so many answers at a time.

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


class NeverAllowed(Exception):
    """Raised for a request that asks for more than its key may have at any time. The message says which limit."""


@dataclass(slots=True)
class _Use:
    arrivals: deque[float] = field(default_factory=deque)
    spent: deque[tuple[float, int]] = field(default_factory=deque)
    """Tokens, with the time at which they were counted."""
    tokens: int = 0
    """Sum of the tokens in `spent`."""
    under_way: int = 0


@dataclass(slots=True)
class Share:
    """The part of a holder's quota that one request has. A patient request begins only where its holder has used less
    than half, so that there is always some left for others of its holder's.
    """

    holder: str
    patient: bool = False
    answers: int = 0

    def part(self, limit: int) -> int:
        """The part of a limit that this request may count on."""
        return max(1, limit // 2) if self.patient else limit


class Quota:
    """Counts exactly, so its memory is bounded by what it lets through in a minute."""

    def __init__(
        self,
        requests_per_minute: int | None = None,
        max_concurrent: int | None = None,
        tokens_per_minute: int | None = None,
    ) -> None:
        self._per_minute = requests_per_minute
        self._concurrent = max_concurrent
        self._tokens = tokens_per_minute
        self._uses: defaultdict[str, _Use] = defaultdict(_Use)

    def enter(self, holder: str, now: float, *, patient: bool = False) -> Share:
        """A request begins. Raises QuotaExceeded; one that is refused counts for nothing."""
        use, share = self._uses[holder], Share(holder, patient)
        self._check_concurrent(use, share, 1)
        self._check_tokens(use, share, now)
        self._count(use, share, now)
        use.under_way += 1
        share.answers = 1
        return share

    def widen(self, share: Share, answers: int) -> None:
        """Count all answers that a call asks for, one at least. Raises QuotaExceeded, after which it has none, or
        NeverAllowed.
        """
        if self._concurrent is not None and answers > self._concurrent:
            raise NeverAllowed(
                f"{answers} answers are more than the {self._concurrent} that this key may have at a time"
            )
        use = self._uses[share.holder]
        self.leave(share)
        self._check_concurrent(use, share, answers)
        use.under_way += answers
        share.answers = answers

    def spend(self, holder: str, tokens: int, now: float) -> None:
        """Count tokens that a request has read or made."""
        if self._tokens is not None and tokens:
            use = self._uses[holder]
            use.spent.append((now, tokens))
            use.tokens += tokens

    def leave(self, share: Share) -> None:
        """A request that was let in is over."""
        self._uses[share.holder].under_way -= share.answers
        share.answers = 0

    def _check_concurrent(self, use: _Use, share: Share, answers: int) -> None:
        if self._concurrent is None:
            return
        most = share.part(self._concurrent) if use.under_way else self._concurrent
        if use.under_way + answers > most:
            message = f"{use.under_way} answers of this key are under way, and {most} may be at a time"
            raise QuotaExceeded(message, RETRY_AFTER)

    def _check_tokens(self, use: _Use, share: Share, now: float) -> None:
        """Tokens are known when they are spent, so the request that goes beyond the quota is the last for a while."""
        if self._tokens is None:
            return
        most = share.part(self._tokens)
        while use.spent and use.spent[0][0] <= now - WINDOW:
            use.tokens -= use.spent.popleft()[1]
        if use.tokens < most:
            return
        left = use.tokens
        for when, tokens in use.spent:
            left -= tokens
            if left < most:
                message = f"this key has used {use.tokens} tokens in a minute, and may use {most}"
                raise QuotaExceeded(message, when + WINDOW - now)

    def _count(self, use: _Use, share: Share, now: float) -> None:
        if self._per_minute is None:
            return
        most = share.part(self._per_minute)
        while use.arrivals and use.arrivals[0] <= now - WINDOW:
            use.arrivals.popleft()
        if len(use.arrivals) >= most:
            message = f"this key has made {most} requests in a minute, as many as it may"
            raise QuotaExceeded(message, use.arrivals[0] + WINDOW - now)
        use.arrivals.append(now)
