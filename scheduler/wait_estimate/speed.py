"""How fast rows make tokens and work is done, and how long answers become, as measured recently.

It knows rows, tokens and work only; time is passed in. Work is counted in tokens (prices.py): a prompt's tokens count
by their price. The machine's prices say how an iteration's time goes with the number of rows, and what was measured
says how many times as long everything takes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from typing import NamedTuple

from scheduler.remaining_length import remaining_length
from scheduler.request import Request

MEMORY = 30.0
"""Seconds of work after which a measurement counts 1/e."""

FEWEST_TOKENS = 16
"""Tokens that make a measurement."""

RECENT = 64
"""Answers that the running mean of lengths goes back."""


class _Sums(NamedTuple):
    """What was measured, of which the older counts less."""

    tokens: float = 0.0  # of rows that decode
    token_rows: float = 0.0  # tokens times the rows that were held
    decode_seconds: float = 0.0  # of rows that decode, those among them in which one stood still for a prompt
    work: float = 0.0
    steps: float = 0.0  # work divided by the rows that were held
    seconds: float = 0.0


class Speed:
    """Seconds of a token and of work, with any number of rows."""

    def __init__(self, iteration: Callable[[float], float] = lambda rows: 0.0) -> None:
        """`iteration` tells the seconds of one with so many rows, by the machine's prices; 0 while they are unknown."""
        self._iteration = iteration
        self._sums = _Sums()
        self._rows = self._decoding = 0  # held since `_now`, and those of them that decode
        self._now = 0.0
        self._answers = 0
        self._mean_length = 0.0

    def observe(self, rows: int, decoding: int, now: float, tokens: int = 0, work: float = 0.0) -> None:
        """Note what the rows held since the last call did: `tokens` by those of them that decode, `work` by all.

        From now on there are `rows`, and `decoding` of them have had the token that their prompt brings.
        """
        if held := self._rows:
            seconds = now - self._now
            new = _Sums(tokens, tokens * held, self._decoding * seconds, work, work / held, seconds)
            fade = exp(-seconds / MEMORY)
            self._sums = _Sums(*(before * fade + one for before, one in zip(self._sums, new, strict=True)))
        self._rows, self._decoding, self._now = rows, decoding, now

    def ended(self, length: int) -> None:
        """Note the length of an answer that is complete."""
        self._answers = min(self._answers + 1, RECENT)
        self._mean_length += (length - self._mean_length) / self._answers

    def seconds_per_token(self, rows: int) -> float | None:
        """Seconds that a row needs for a token when so many are held; None until that has been measured."""
        sums = self._sums
        if not self._is_measured:
            return None
        return sums.decode_seconds / sums.tokens * self._compare(rows, sums.token_rows / sums.tokens)

    def seconds_of_work(self, rows: int) -> float | None:
        """Seconds in which a token's worth of work is done when so many rows are held; None until that was measured."""
        sums = self._sums
        if not self._is_measured:
            return None
        usual = sums.work / sums.steps
        shared = usual / max(1.0, rows) if self._iteration(usual) else 1.0
        return sums.seconds / sums.work * shared * self._compare(rows, usual)

    @property
    def _is_measured(self) -> bool:
        return self._sums.tokens >= FEWEST_TOKENS and self._sums.decode_seconds > 0

    def _compare(self, rows: float, usual: float) -> float:
        """How many times as long an iteration takes as with the usual rows; 1 while prices are unknown."""
        seconds = self._iteration(usual)
        return self._iteration(rows) / seconds if seconds else 1.0

    @property
    def mean_length(self) -> float | None:
        """Tokens of the recent answers, on the average; None before the first."""
        return self._mean_length if self._answers else None

    def remaining(self, request: Request) -> float:
        """Tokens that a request is expected to make from now on; without a prediction, as many as recent answers."""
        return remaining_length(request, self.mean_length)
