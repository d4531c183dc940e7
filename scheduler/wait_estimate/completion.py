"""What was measured tells of answers to come: the calibration of an estimate's median and interval, and the speed.

An estimate's point p and the spread of its length l, both of this moment, come from elsewhere. Of each answer that
ends, after t seconds, the score z = ln(t / p) / s is kept; s = sqrt(l² + e²), with e the mean of |ln(t / p)| of late:
wait and speed are uncertain also where the length is known. The median of the estimates to come is p·exp(s·z50), their
interval from p·exp(s·z05) to p·exp(s·z95), with the quantiles of the latest scores: split conformal prediction (Lei et
al., JASA 113, 2018), with scores that know their sign. So a bias that lasts is corrected, and the interval covers what
it says.

Speed is how fast rows make tokens and work is done, and how long answers become, as measured recently. It knows rows,
tokens and work only; time is passed in. Work is counted in tokens (prices.py): a prompt's tokens count
by their price. The machine's prices say how an iteration's time goes with the number of rows, and what was measured
says how many times as long everything takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, hypot, log
from typing import NamedTuple

COVERAGE = 0.9
"""Part of the answers whose end shall be within the interval."""

RECENT = 256
"""Answers whose scores count."""

FEWEST = 32
"""Scores before which estimates are taken as they come; and answers before which an estimate has no score, since it was
made while nearly nothing was known, and tells nothing of later ones."""

LEAST_SPREAD = 0.25
"""Spread of an estimate at least."""

LEAST_SECONDS = 1e-3
"""Seconds that an answer and its estimate count for at least, so that they have logarithms."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Estimate of a request's wait and latency, made at one moment, in seconds from there."""

    at: float
    """The moment, in seconds of the clock."""
    place: int
    """Requests ahead in the queue."""
    wait: float | None = None
    """Seconds until the request starts; None when nothing has been measured yet, and then all below is 0."""
    point: float = 0.0
    """Seconds until the answer is complete, before calibration."""
    spread: float = 0.0
    """s, by which the distance of the end from the point is measured."""
    low: float = 0.0
    median: float = 0.0
    high: float = 0.0
    answers: int = FEWEST
    """Answers that had ended when it was made."""
    waits: bool = False
    """Whether all slots were taken."""

    @property
    def known(self) -> bool:
        """Whether there is an estimate of the end."""
        return self.point > 0.0


class Calibration:
    """The scores of the latest answers."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=RECENT)
        self._error = 0.0  # e
        self.answers = 0
        """Answers that have ended."""

    def add(self, expected: Expected, seconds: float) -> None:
        """Note that an answer was complete so many seconds after the moment of its estimate."""
        self.answers += 1
        if expected.answers < FEWEST:
            return
        error = log(max(seconds, LEAST_SECONDS) / expected.point)
        self._latest.append(error / expected.spread)
        self._error += (abs(error) - self._error) / len(self._latest)

    def spread(self, lengths: float) -> float:
        """s of an estimate whose length spreads so far: the logarithm of the interval's ends' ratio."""
        return max(LEAST_SPREAD, hypot(lengths, self._error))

    def interval(self, point: float, spread: float) -> tuple[float, float, float]:
        """The low end, the median and the high end for an estimate."""
        scores = (-0.5, 0.0, 0.5)
        if (count := len(self._latest)) >= FEWEST:
            latest = sorted(self._latest)
            low = max(0, int((1 - COVERAGE) / 2 * (count + 1)) - 1)
            scores = latest[low], latest[count // 2], latest[count - 1 - low]
        low_end, median, high_end = (point * exp(spread * score) for score in scores)
        return low_end, median, high_end


MEMORY = 30.0
"""Seconds of work after which a measurement counts 1/e."""

FEWEST_TOKENS = 16
"""Tokens that make a measurement."""

LENGTHS = 64
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
        self._answers = min(self._answers + 1, LENGTHS)
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
