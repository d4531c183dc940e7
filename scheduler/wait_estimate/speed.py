"""Measured speed of what executors hold."""

from collections.abc import Callable
from math import exp, inf
from typing import NamedTuple

MEMORY = 30.0  # seconds of work after which a measurement weighs 1/e

FEWEST_TOKENS = 16

FEWEST_ANSWERS = 4

LENGTHS = 64  # answers in the running mean


class _Sums(NamedTuple):
    """Exponentially decayed."""

    tokens: float = 0.0
    token_rows: float = 0.0  # tokens times rows held
    decode_seconds: float = 0.0  # of rows that decode
    work: float = 0.0
    steps: float = 0.0  # work / rows held
    seconds: float = 0.0


class Speed:
    """Seconds of a token and of work by rows held; work is counted in tokens (prices.py)."""

    def __init__(self, iteration: Callable[[float], float] = lambda rows: 0.0) -> None:
        """`iteration` gives seconds by rows, from the machine's prices; 0 while unknown."""
        self._iteration = iteration
        self._sums = _Sums()
        self._rows = self._decoding = 0  # held since `_now`, and those that decode
        self._now = 0.0
        self.answers = 0  # of LENGTHS
        self._mean_length = self._complete = 0.0

    def observe(self, rows: int, decoding: int, now: float, tokens: int = 0, work: float = 0.0) -> None:
        """What rows held since the last call did: `tokens` by those that decode, `work` by all; then set `rows` and
        `decoding`, those past their first token.
        """
        if held := self._rows:
            seconds = now - self._now
            new = _Sums(tokens, tokens * held, self._decoding * seconds, work, work / held, seconds)
            fade = exp(-seconds / MEMORY)
            self._sums = _Sums(*(before * fade + one for before, one in zip(self._sums, new, strict=True)))
        self._rows, self._decoding, self._now = rows, decoding, now

    def ended(self, length: int, *, cut: bool = False) -> None:
        self.answers = min(self.answers + 1, LENGTHS)
        self._mean_length += (length - self._mean_length) / self.answers
        self._complete += (1.0 - cut - self._complete) / self.answers

    def seconds_per_token(self, rows: int) -> float | None:
        sums = self._sums
        if not self._is_measured:
            return self._iteration(rows) or self._seconds_per_work(rows)
        return sums.decode_seconds / sums.tokens * self._compare(rows, sums.token_rows / sums.tokens)

    def seconds_per_step(self, rows: int) -> float | None:
        """In which each of `rows` does the work of a token; None until measured, unless prices are known."""
        sums = self._sums
        if not self._is_measured:
            return self._iteration(rows) or self._seconds_per_work(rows)
        usual = sums.work / sums.steps
        shared = usual if self._iteration(usual) else max(1.0, rows)
        return sums.seconds / sums.work * shared * self._compare(rows, usual)

    def _seconds_per_work(self, rows: float) -> float | None:
        """For answers that come at once, as short ones at a gateway."""
        few = self.answers < FEWEST_ANSWERS or not self._sums.work
        return None if few else self._sums.seconds / self._sums.work * max(1.0, rows)

    @property
    def _is_measured(self) -> bool:
        return self._sums.tokens >= FEWEST_TOKENS and self._sums.decode_seconds > 0

    def _compare(self, rows: float, usual: float) -> float:
        """Ratio to an iteration with the usual rows; 1 while prices are unknown."""
        seconds = self._iteration(usual)
        return self._iteration(rows) / seconds if seconds else 1.0

    @property
    def mean_length(self) -> float | None:
        """In tokens; None before the first answer."""
        return self._mean_length if self.answers else None

    @property
    def uncut_length(self) -> float | None:
        """Without limits, by what exponential lengths have (Epstein and Sobel, JASA 48, 1953); infinite if all were
        cut.
        """
        return None if not self.answers else self._mean_length / self._complete if self._complete else inf
