"""Notices an answer that only repeats itself."""

from __future__ import annotations

from collections import deque

LONGEST_PERIOD = 64  # tokens of the longest run whose repetition is noticed


LEAST_TOKENS = 256  # tokens that the repetitions must cover


LEAST_TIMES = 4  # times that the run must occur


class RepetitionDetector:
    """Watches one answer in constant time and memory a token."""

    def __init__(
        self, longest_period: int = LONGEST_PERIOD, least_tokens: int = LEAST_TOKENS, least_times: int = LEAST_TIMES
    ) -> None:
        self._least_tokens = least_tokens
        self._least_times = least_times
        self._newest: deque[int] = deque(maxlen=longest_period)  # newest token first
        self._agreeing: dict[int, int] = {}  # period -> tokens, up to the newest, equal to the one a period earlier

    def push(self, token_id: int) -> bool:
        """Whether the answer now ends in a run of tokens repeated often enough."""
        before = self._agreeing
        self._agreeing = {
            period: before.get(period, 0) + 1
            for period, earlier in enumerate(self._newest, start=1)
            if earlier == token_id
        }
        self._newest.appendleft(token_id)
        return any(
            period + agreeing >= max(self._least_tokens, self._least_times * period)
            for period, agreeing in self._agreeing.items()
        )
