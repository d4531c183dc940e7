from dataclasses import dataclass
from math import exp, log
from typing import TypeAlias

LEAST_SECONDS = 1e-3  # lower bound of times, for their logarithms

Group: TypeAlias = tuple[int, int]  # quarter of the queue that is ahead, -1 for none; length class


@dataclass(frozen=True, slots=True)
class Expected:
    """Estimated wait and latency, in seconds from `at`."""

    at: float  # seconds of the clock
    place: int  # requests ahead
    wait: float | None = None  # None before any measurement; then the rest is 0
    own: float = 0.0  # from the start to the end
    point: float = 0.0  # to the end, uncalibrated
    spread: float = 0.0  # s
    own_spread: float = 1.0
    low: float = 0.0
    median: float = 0.0
    high: float = 0.0  # promised
    group: Group | None = None  # None: not scored
    waits: bool = False  # all slots taken
    first: bool = False  # kept only if it goes first
    answers: int = 0  # known then

    @property
    def known(self) -> bool:
        return self.point > 0.0

    @property
    def by(self) -> float:
        """Promised, on the clock."""
        return self.at + self.high

    @property
    def due(self) -> float:
        """When it must go first, by the clock, for its longest likely answer to fit."""
        return self.at if self.first else self.by - self.own * exp(self.own_spread)

    def score(self, seconds: float) -> float:
        """z."""
        return log(max(seconds, LEAST_SECONDS) / self.point) / self.spread
