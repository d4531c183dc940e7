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


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a holder may ask for; None for no bound."""

    requests_per_minute: int | None
    concurrent: int | None
    tokens_per_minute: int | None

    def halve(self) -> Limits:
        """Half of each, at least 1."""
        return Limits(_half(self.requests_per_minute), _half(self.concurrent), _half(self.tokens_per_minute))


def _half(limit: int | None) -> int | None:
    return None if limit is None else max(1, limit // 2)


@dataclass(slots=True)
class Share:
    """The part of a holder's quota that one request has."""

    holder: str
    limits: Limits
    answers: int = 0


class Quota:
    """Counts exactly, so its memory is bounded by what it lets through in a minute."""

    def __init__(
        self,
        requests_per_minute: int | None = None,
        max_concurrent: int | None = None,
        tokens_per_minute: int | None = None,
    ) -> None:
        self.interactive = Limits(requests_per_minute, max_concurrent, tokens_per_minute)
        """Limits of requests that a client waits for."""
        self.background = self.interactive.halve()
        """Limits of lines of batches, which so leave half to their holder's other requests."""
        self._uses: defaultdict[str, _Use] = defaultdict(_Use)

    def enter(self, holder: str, now: float, limits: Limits | None = None) -> Share:
        """A request begins, within `interactive` unless other limits are given. Raises QuotaExceeded; one that is
        refused counts for nothing.
        """
        use, share = self._uses[holder], Share(holder, limits or self.interactive)
        self._check_concurrent(use, share.limits, 1)
        self._check_tokens(use, share.limits.tokens_per_minute, now)
        self._count(use, share.limits.requests_per_minute, now)
        use.under_way += 1
        share.answers = 1
        return share

    def count_answers(self, share: Share, answers: int) -> None:
        """Count all answers that a call asks for, one at least. Raises QuotaExceeded, after which it has none, or
        NeverAllowed.
        """
        most = self.interactive.concurrent
        if most is not None and answers > most:
            raise NeverAllowed(f"{answers} answers are more than the {most} that this key may have at a time")
        use = self._uses[share.holder]
        self.leave(share)
        self._check_concurrent(use, share.limits, answers)
        use.under_way += answers
        share.answers = answers

    def spend(self, holder: str, tokens: int, now: float) -> None:
        """Count tokens that a request has read or made."""
        if self.interactive.tokens_per_minute is not None and tokens:
            use = self._uses[holder]
            use.spent.append((now, tokens))
            use.tokens += tokens

    def leave(self, share: Share) -> None:
        """A request that was let in is over."""
        self._uses[share.holder].under_way -= share.answers
        share.answers = 0

    def _check_concurrent(self, use: _Use, limits: Limits, answers: int) -> None:
        """A request with nothing beside it has the whole quota, whatever its own limits."""
        most = limits.concurrent if use.under_way else self.interactive.concurrent
        if most is not None and use.under_way + answers > most:
            message = f"{use.under_way} answers of this key are under way, and {most} may be at a time"
            raise QuotaExceeded(message, RETRY_AFTER)

    def _check_tokens(self, use: _Use, most: int | None, now: float) -> None:
        """Tokens are known when they are spent, so the request that goes beyond the quota is the last for a while."""
        if most is None:
            return
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

    def _count(self, use: _Use, most: int | None, now: float) -> None:
        if most is None:
            return
        while use.arrivals and use.arrivals[0] <= now - WINDOW:
            use.arrivals.popleft()
        if len(use.arrivals) >= most:
            message = f"this key has made {most} requests in a minute, as many as it may"
            raise QuotaExceeded(message, use.arrivals[0] + WINDOW - now)
        use.arrivals.append(now)
