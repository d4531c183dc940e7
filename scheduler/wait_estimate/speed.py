"""Measured speed of what executors hold."""

from collections.abc import Callable
from math import exp, expm1, inf
from typing import NamedTuple

MEMORY = 30.0  # seconds of work after which a measurement weighs 1/e; of any time, for reading's share

MOST_READING = 0.9  # share that counts

FEWEST_TOKENS = 16

FEWEST_ANSWERS = 4

LENGTHS = 64  # answers in the running mean


class _Sums(NamedTuple):
    """Exponentially decayed."""

    tokens: float = 0.0
    token_rows: float = 0.0  # tokens times rows held
    token_cells: float = 0.0  # tokens times KV cells of a row held
    decode_seconds: float = 0.0  # of rows that decode, while none is read
    work: float = 0.0
    steps: float = 0.0  # work / rows held
    seconds: float = 0.0


class Speed:
    """Seconds of a token and of work by rows held; work is counted in tokens (prices.py)."""

    def __init__(self, iteration: Callable[[float, float | None], float] = lambda rows, cells: 0.0) -> None:
        """`iteration` gives seconds by rows and KV cells of each, None for as many as now, from the machine's prices;
        0 while unknown.
        """
        self._iteration = iteration
        self._sums = _Sums()
        self._rows = self._decoding = self._cells = 0  # held since `_now`, those that decode, and KV cells of all
        self._now = self._reading = self._elapsed = self._begun = 0.0
        self.answers = 0  # of LENGTHS
        self._mean_length = self._complete = 0.0

    def observe(
        self,
        rows: int,
        decoding: int,
        now: float,
        tokens: int = 0,
        work: float = 0.0,
        reading: float = 0.0,
        cells: int = 0,
        begun: int = 0,
    ) -> None:
        """What rows held since the last call did: `tokens` by those that decode, `work` by all, of it `reading`
        prompts, in seconds by prices; then set `rows`, `decoding`, those past their first token, and `cells` of all.
        """
        seconds = now - self._now
        fade, reading, holds_up = exp(-seconds / MEMORY), min(seconds, reading), self._decoding > 0
        self._reading = self._reading * fade + reading * holds_up
        self._begun = self._begun * fade + begun * holds_up
        self._elapsed = self._elapsed * fade - MEMORY * expm1(-seconds / MEMORY)
        if held := self._rows:
            decode_seconds = self._decoding * (seconds - reading)
            cells_made = tokens * self._cells / held
            new = _Sums(tokens, tokens * held, cells_made, decode_seconds, work, work / held, seconds)
            self._sums = _Sums(*(before * fade + one for before, one in zip(self._sums, new, strict=True)))
        self._rows, self._decoding, self._cells, self._now = rows, decoding, cells, now

    def ended(self, length: int, *, cut: bool = False) -> None:
        self.answers = min(self.answers + 1, LENGTHS)
        self._mean_length += (length - self._mean_length) / self.answers
        self._complete += (1.0 - cut - self._complete) / self.answers

    def seconds_per_token(self, rows: int) -> float | None:
        sums = self._sums
        if not self._is_measured:
            return self._iteration(rows, None) or self._seconds_per_work(rows)
        decoding = max(1 - MOST_READING, 1 - self._reading / self._elapsed)
        return sums.decode_seconds / sums.tokens / decoding * self._compare(rows, sums.token_rows / sums.tokens)

    def seconds_per_step(self, rows: int) -> float | None:
        """In which each of `rows` does the work of a token; None until measured, unless prices are known."""
        sums = self._sums
        if not self._is_measured:
            return self._iteration(rows, None) or self._seconds_per_work(rows)
        usual = sums.work / sums.steps
        shared = usual if self._iteration(usual, None) else max(1.0, rows)
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
        seconds = self._iteration(usual, self._sums.token_cells / self._sums.tokens)
        return self._iteration(rows, None) / seconds if seconds else 1.0

    @property
    def prompt_seconds(self) -> float:
        """To read one, lately; 0 while unknown."""
        return self._reading / self._begun if self._begun else 0.0

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
