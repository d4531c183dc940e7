"""The tokens that a row has said, counted, and whether an answer only repeats itself. Knows no tensor."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable


class Said:
    """The distinct tokens of a row's prompt and answer, and how often the answer has each."""

    def __init__(self, prompt: Iterable[int], generated: Iterable[int]) -> None:
        self._places = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        self.tokens = array("q", self._places)
        self.counts = array("f", [0.0]) * len(self.tokens)
        for token in generated:
            self.add(token)

    def add(self, token: int) -> None:
        """Count the answer's next token."""
        place = self._places.setdefault(token, len(self.tokens))
        if place == len(self.tokens):
            self.tokens.append(token)
            self.counts.append(0.0)
        self.counts[place] += 1


LONGEST_PERIOD = 64
"""Tokens of the longest run whose repetition is noticed."""

LEAST_TOKENS = 256
"""Tokens that the repetitions must cover."""

LEAST_TIMES = 4
"""Times that the run must have been there."""


class RepetitionDetector:
    """Watches one answer, in time and memory that do not grow with it."""

    def __init__(
        self, longest_period: int = LONGEST_PERIOD, least_tokens: int = LEAST_TOKENS, least_times: int = LEAST_TIMES
    ) -> None:
        self._least_tokens = least_tokens
        self._least_times = least_times
        self._newest: deque[int] = deque(maxlen=longest_period)  # the newest token first
        self._agreeing: dict[int, int] = {}  # period -> tokens, up to the newest, that equal the one a period earlier

    def push(self, token_id: int) -> bool:
        """Take the next token; whether the answer's end is now a run of tokens repeated often enough."""
        before = self._agreeing
        self._agreeing = {
            period: before.get(period, 0) + 1
            for period, earlier in enumerate(self._newest, start=1)
            if earlier == token_id
        }
        self._newest.appendleft(token_id)
        return any(self._suffices(period, period + agreeing) for period, agreeing in self._agreeing.items())

    def _suffices(self, period: int, covered: int) -> bool:
        return covered >= max(self._least_tokens, self._least_times * period)
