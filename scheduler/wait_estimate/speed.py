"""Measured speed of what executors hold."""

from collections.abc import Callable
from math import exp, expm1, inf, sqrt
from statistics import NormalDist
from typing import NamedTuple

MEMORY = 30.0  # seconds of work after which a measurement weighs 1/e; of any time, for reading's share

MOST_READING = 0.9  # share that counts

FEWEST_TOKENS = 16

FEWEST_ANSWERS = 4

LENGTHS = 64  # answers in the running mean

NORMAL = NormalDist()


class Holding(NamedTuple):
    """What executors hold."""

    rows: int = 0
    decoding: int = 0  # past their first token
    cells: int = 0  # of the KV cache, of all rows


class Made(NamedTuple):
    tokens: int = 0  # by rows that decode
    work: float = 0.0  # by all
    reading: float = 0.0  # seconds of prompts, by prices
    begun: int = 0  # prompts
    all_tokens: int = 0  # first ones included


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
        self._load = Holding()  # since `_now`
        self._now = self._reading = self._elapsed = self._begun = 0.0
        self.answers = 0  # of LENGTHS
        self._since = 0  # tokens made since the last end
        self._exposure = self._mean = self._square = self._complete = 0.0  # a recent end

    def observe(self, load: Holding, now: float, made: Made = Made()) -> None:  # noqa: B008 - frozen
        """`made` since the last call; `load` from now on."""
        self._since += made.all_tokens
        before, seconds = self._load, now - self._now
        fade, holds_up, reading = exp(-seconds / MEMORY), before.decoding > 0, 0.0
        if made.reading and holds_up:  # by their shares of prices: where the machine is slower, all is
            steps = self._iteration(before.rows, before.cells / before.rows) * made.tokens / before.decoding
            reading = seconds * made.reading / (made.reading + steps)
        self._reading = self._reading * fade + reading
        self._begun = self._begun * fade + made.begun * holds_up
        self._elapsed = self._elapsed * fade - MEMORY * expm1(-seconds / MEMORY)
        if rows := before.rows:
            tokens, decode_seconds = made.tokens, before.decoding * (seconds - reading)
            cells_made = tokens * before.cells / rows
            new = _Sums(tokens, tokens * rows, cells_made, decode_seconds, made.work, made.work / rows, seconds)
            self._sums = _Sums(*(one * fade + more for one, more in zip(self._sums, new, strict=True)))
        self._load, self._now = load, now

    def ended(self, length: int, *, cut: bool = False) -> None:
        self.answers = min(self.answers + 1, LENGTHS)
        self._exposure += (self._since - self._exposure) / self.answers
        self._since = 0
        self._mean += (length - self._mean) / self.answers
        self._complete += (1.0 - cut - self._complete) / self.answers
        self._square += (length * length - self._square) / self.answers

    def sum_error(self, count: int) -> float:
        """Relative error of as many lengths' sum; the mean weighs as of twice LENGTHS."""
        if not self._mean:
            return 0.0
        variation = max(0.0, self._square / self._mean**2 - 1)
        return sqrt(variation * (1 / max(1, count) + 1 / (2 * self.answers)))

    def sum_quantile(self, count: int, share: float) -> float:
        """In sums expected."""
        return 1 + NORMAL.inv_cdf(share) * self.sum_error(count)

    def seconds_per_token(self, rows: int, *, paused: bool = True) -> float | None:
        """`paused` for prompts, as lately."""
        sums = self._sums
        if not self._is_measured:
            return self._iteration(rows, None) or self._seconds_per_work(rows)
        decoding = max(1 - MOST_READING, 1 - self._reading / self._elapsed) if paused else 1.0
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
        """Tokens of all rows an end, since the longest end last; None before the first."""
        return self._exposure + self._since / self.answers if self.answers else None

    @property
    def uncut_length(self) -> float | None:
        """Without limits, by what exponential lengths have (Epstein and Sobel, JASA 48, 1953); infinite if all were
        cut.
        """
        mean = self.mean_length
        return None if mean is None else mean / self._complete if self._complete else inf
