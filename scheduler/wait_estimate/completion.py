"""When an answer is expected to be complete: an estimate's median and interval, calibrated by the answers that ended.

An estimate's point p and the spread of its length l, both of this moment, come from elsewhere. Of each answer that
ends, after t seconds, the score z = ln(t / p) / s is kept; s = sqrt(l² + e²), with e the mean of |ln(t / p)| of late:
wait and speed are uncertain also where the length is known. The median of the estimates to come is p·exp(s·z50), their
interval from p·exp(s·z05) to p·exp(s·z95), with the quantiles of the latest scores: split conformal prediction (Lei et
al., JASA 113, 2018), with scores that know their sign. So a bias that lasts is corrected, and the interval covers what
it says.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from math import exp, hypot, log

from scheduler.waiting.queue import Ahead

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


@dataclass(slots=True)
class Comparison:
    """Latencies beside those by order of arrival: sums since the start, over requests that ended with an answer."""

    requests: int = 0
    latency: float = 0.0  # seconds from arrival to end
    latency_by_arrival: float = 0.0
    per_token: float = 0.0  # seconds from arrival to end for each generated token: normalized latency
    per_token_by_arrival: float = 0.0
    latest: float = 0.0  # most seconds that an answer ended later than by order of arrival

    def add(self, latency: float, by_arrival: float, tokens: int) -> None:
        """Count an answer by its two latencies in seconds."""
        self.requests += 1
        self.latency += latency
        self.latency_by_arrival += by_arrival
        self.per_token += latency / tokens
        self.per_token_by_arrival += by_arrival / tokens
        self.latest = max(self.latest, latency - by_arrival)


@dataclass(frozen=True, slots=True)
class Before:
    """What was before a request when it came."""

    waiting: Ahead = Ahead()
    """All that waited."""
    rest: float = 0.0
    """Mean work that rows had still to do."""
    rows: int = 0
    """Rows that shared the executors; 0 where it need not have waited."""


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
    before: Before = Before()

    @property
    def known(self) -> bool:
        """Whether there is an estimate of the end."""
        return self.point > 0.0


class Calibration:
    """The scores of the latest answers."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._error = 0.0  # e
        self._count = 0
        self.answers = 0
        """Answers that have ended."""

    def add(self, expected: Expected, seconds: float) -> None:
        """Note that an answer was complete so many seconds after the moment of its estimate."""
        self.answers += 1
        if expected.answers < FEWEST:
            return
        error = log(max(seconds, LEAST_SECONDS) / expected.point)
        self._count = min(self._count + 1, RECENT)
        self._error += (abs(error) - self._error) / self._count
        score = error / expected.spread
        self._latest.append(score)
        insort(self._sorted, score)
        if len(self._latest) > RECENT:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]

    def spread(self, lengths: float) -> float:
        """s of an estimate whose length spreads so far: the logarithm of the interval's ends' ratio."""
        return max(LEAST_SPREAD, hypot(lengths, self._error))

    def interval(self, point: float, spread: float) -> tuple[float, float, float]:
        """The low end, the median and the high end for an estimate."""
        scores = (-0.5, 0.0, 0.5)
        if (count := len(self._sorted)) >= FEWEST:
            low = int((1 - COVERAGE) / 2 * (count + 1)) - 1
            scores = (
                self._sorted[max(0, low)],
                self._sorted[count // 2],
                self._sorted[min(count - 1, count - 1 - low)],
            )
        low_end, median, high_end = (point * exp(spread * score) for score in scores)
        return low_end, median, high_end
