"""How fast rows make tokens, depending on how many there are, and how long answers become, as measured recently.

It knows rows and tokens only; time is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from scheduler.remaining_length import remaining_length
from scheduler.request import Request

MEMORY = 30.0
"""Seconds of work after which a measurement counts 1/e."""

FEWEST_TOKENS = 16
"""Tokens that make a measurement: the first ones come after a prompt that was read for them all."""

RECENT = 64
"""Answers that the running mean of lengths goes back."""


@dataclass(slots=True)
class _Level:
    """Measurements while about so many rows were held, of which the older count less."""

    tokens: float = 0.0
    row_seconds: float = 0.0
    weighted_rows: float = 0.0
    """Rows times row-seconds."""

    @property
    def rows(self) -> float:
        return self.weighted_rows / self.row_seconds

    @property
    def seconds_per_token(self) -> float:
        return self.row_seconds / self.tokens

    def add(self, rows: int, tokens: int, seconds: float) -> None:
        fade = exp(-seconds / MEMORY)
        self.tokens = self.tokens * fade + tokens
        self.row_seconds = self.row_seconds * fade + rows * seconds
        self.weighted_rows = self.weighted_rows * fade + rows * rows * seconds


class DecodeSpeed:
    """Seconds of a token, measured apart with 1, with 2 and 3, with 4 to 7 rows, and so on."""

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        self._rows = 0  # held since `_now`
        self._now = 0.0
        self._answers = 0
        self._mean_length = 0.0

    def observe(self, rows: int, tokens: int, now: float) -> None:
        """Note that the rows held since the last call made `tokens`, and that there are `rows` from now on."""
        if self._rows:
            level = self._levels.setdefault(self._rows.bit_length(), _Level())
            level.add(self._rows, tokens, now - self._now)
        self._rows, self._now = rows, now

    def ended(self, length: int) -> None:
        """Note the length of an answer that is complete."""
        self._answers = min(self._answers + 1, RECENT)
        self._mean_length += (length - self._mean_length) / self._answers

    def seconds_per_token(self, rows: int) -> float | None:
        """Seconds that a row needs for a token when so many are held; None until that has been measured.

        On a straight line between the nearest numbers of rows that were seen; beyond them, as at the nearest.
        """
        measured = sorted(
            (one.rows, one.seconds_per_token)
            for one in self._levels.values()
            if one.tokens >= FEWEST_TOKENS and one.row_seconds
        )
        if not measured:
            return None
        below = max((one for one in measured if one[0] <= rows), default=measured[0])
        above = min((one for one in measured if one[0] >= rows), default=measured[-1])
        if below[0] >= above[0]:
            return below[1] if rows >= below[0] else above[1]
        part = (rows - below[0]) / (above[0] - below[0])
        return below[1] + part * (above[1] - below[1])

    @property
    def mean_length(self) -> float | None:
        """Tokens of the recent answers, on the average; None before the first."""
        return self._mean_length if self._answers else None

    def remaining(self, request: Request) -> float:
        """Tokens that a request is expected to make from now on; without a prediction, as many as recent answers."""
        return remaining_length(request, self.mean_length)
