"""Detects an answer that only repeats itself."""

from collections import deque

LONGEST_PERIOD = 64  # tokens


LEAST_TOKENS = 256  # of the repetitions


LEAST_TIMES = 4


class RepetitionDetector:
    """Constant time and memory a token."""

    def __init__(self) -> None:
        self._newest: deque[int] = deque(maxlen=LONGEST_PERIOD)  # newest first
        self._equal: dict[int, int] = {}  # period -> tokens equal to those a period earlier

    def push(self, token_id: int) -> bool:
        before = self._equal
        agreeing = (period for period, earlier in enumerate(self._newest, start=1) if earlier == token_id)
        self._equal = {period: before.get(period, 0) + 1 for period in agreeing}
        self._newest.appendleft(token_id)
        return any(period + equal >= max(LEAST_TOKENS, LEAST_TIMES * period) for period, equal in self._equal.items())
