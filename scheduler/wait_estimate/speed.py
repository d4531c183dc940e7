"""How fast rows make tokens and work is done, depending on how many rows there are, and how long answers become, as
measured recently.

It knows rows, tokens and work only; time is passed in. Work is counted in tokens (prices.py): a prompt's tokens count
by their price. With numbers of rows that were not seen, the speed differs from what was measured as the machine's
prices say that iterations differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp

from scheduler.remaining_length import remaining_length
from scheduler.request import Request

MEMORY = 30.0
"""Seconds of work after which a measurement counts 1/e."""

FEWEST_TOKENS = 16
"""Tokens that make a measurement."""

RECENT = 64
"""Answers that the running means of lengths and of reading go back."""


@dataclass(slots=True)
class _Level:
    """Measurements while about so many rows were held, of which the older count less."""

    seconds: float = 0.0
    weighted_rows: float = 0.0
    """Rows times seconds."""
    tokens: float = 0.0
    """Tokens of rows that decode."""
    decode_seconds: float = 0.0
    """Seconds of each of these rows, those among them in which it stood still while a prompt was read."""
    work: float = 0.0

    @property
    def rows(self) -> float:
        return self.weighted_rows / self.seconds

    @property
    def seconds_per_token(self) -> float:
        return self.decode_seconds / self.tokens

    @property
    def seconds_of_work(self) -> float:
        return self.seconds / self.work

    def add(self, rows: int, decoding: int, tokens: int, work: float, seconds: float) -> None:
        fade = exp(-seconds / MEMORY)
        self.seconds = self.seconds * fade + seconds
        self.weighted_rows = self.weighted_rows * fade + rows * seconds
        self.tokens = self.tokens * fade + tokens
        self.decode_seconds = self.decode_seconds * fade + decoding * seconds
        self.work = self.work * fade + work


class Speed:
    """Seconds of a token and of work, measured apart with 1, with 2 and 3, with 4 to 7 rows, and so on."""

    def __init__(self, iteration: Callable[[float], float] = lambda rows: 0.0) -> None:
        """`iteration` tells the seconds of one with so many rows, by the machine's prices; 0 while they are unknown."""
        self._iteration = iteration
        self._levels: dict[int, _Level] = {}
        self._rows = self._decoding = 0  # held since `_now`, and those of them that decode
        self._now = 0.0
        self._answers = 0
        self._mean_length = 0.0
        self._reading_seconds = self._reading_work = 0.0

    def observe(self, rows: int, decoding: int, now: float, tokens: int = 0, work: float = 0.0) -> None:
        """Note what the rows held since the last call did: `tokens` by those of them that decode, `work` by all.

        From now on there are `rows`, and `decoding` of them have had the token that their prompt brings.
        """
        if self._rows:
            level = self._levels.setdefault(self._rows.bit_length(), _Level())
            level.add(self._rows, self._decoding, tokens, work, now - self._now)
        self._rows, self._decoding, self._now = rows, decoding, now

    def ended(self, length: int) -> None:
        """Note the length of an answer that is complete."""
        self._answers = min(self._answers + 1, RECENT)
        self._mean_length += (length - self._mean_length) / self._answers

    def read(self, work: float, seconds: float) -> None:
        """Note how long it took from a request's start to its first token, and the work that was."""
        fade = 1 - 1 / RECENT
        self._reading_work, self._reading_seconds = (
            self._reading_work * fade + work,
            self._reading_seconds * fade + seconds,
        )

    def seconds_to_read(self, work: float) -> float:
        """Seconds from start to first token of a request that has so much to read; 0 until that has been measured."""
        return work * self._reading_seconds / self._reading_work if self._reading_work else 0.0

    def seconds_per_token(self, rows: int) -> float | None:
        """Seconds that a row needs for a token when so many are held; None until that has been measured."""
        return self._interpolate(
            rows, lambda level: level.seconds_per_token, lambda count: self._iteration(count) or 1.0
        )

    def seconds_of_work(self, rows: int) -> float | None:
        """Seconds in which a token's worth of work is done when so many rows are held; None until that was measured."""
        return self._interpolate(
            rows, lambda level: level.seconds_of_work, lambda count: (self._iteration(count) or count) / max(1.0, count)
        )

    def _interpolate(
        self, rows: int, value: Callable[[_Level], float], usual: Callable[[float], float]
    ) -> float | None:
        """The usual value times what was measured of it: on a straight line between the nearest numbers of rows that
        were seen; beyond them, as at the nearest."""
        measured = sorted(
            (one.rows, value(one) / usual(one.rows))
            for one in self._levels.values()
            if one.tokens >= FEWEST_TOKENS and one.decode_seconds
        )
        if not measured:
            return None
        below = max((one for one in measured if one[0] <= rows), default=measured[0])
        above = min((one for one in measured if one[0] >= rows), default=measured[-1])
        part = (rows - below[0]) / (above[0] - below[0]) if above[0] > below[0] else 0.0
        return (below[1] + part * (above[1] - below[1])) * usual(rows)

    @property
    def mean_length(self) -> float | None:
        """Tokens of the recent answers, on the average; None before the first."""
        return self._mean_length if self._answers else None

    def remaining(self, request: Request) -> float:
        """Tokens that a request is expected to make from now on; without a prediction, as many as recent answers."""
        return remaining_length(request, self.mean_length)
