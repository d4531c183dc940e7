"""Detects an answer that only repeats itself."""

from collections import deque

LONGEST_PERIOD = 64  # tokens


LEAST_TOKENS = 256  # of the repetitions


LEAST_TIMES = 4


class RepetitionDetector:
    """Constant time and memory a token."""

    def __init__(
        self, longest_period: int = LONGEST_PERIOD, least_tokens: int = LEAST_TOKENS, least_times: int = LEAST_TIMES
    ) -> None:
        self._least_tokens = least_tokens
        self._least_times = least_times
        self._newest: deque[int] = deque(maxlen=longest_period)  # newest first
        self._agreeing: dict[int, int] = {}  # period -> tokens equal to those a period earlier

    def push(self, token_id: int) -> bool:
        """Whether it repeats now."""
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
