"""When requests are sent: random arrival processes, as `vllm bench serve` has them. Knows no request and no clock.

The gaps of a process with rate r and burstiness b follow Gamma(shape=b, scale=1/(r*b)): mean 1/r, coefficient of
variation 1/sqrt(b). So b = 1 is a Poisson process, less is burstier, more is smoother and infinity is a metronome.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Seconds: TypeAlias = NDArray[np.float64]
RampStrategy: TypeAlias = Literal["linear", "exponential"]


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that changes from the first request to the last, both in requests per second and above 0."""

    strategy: RampStrategy
    start: float
    end: float

    def rates(self, count: int) -> Seconds:
        """The rate at which each request arrives: `count` figures from `start` to `end`."""
        progress = np.arange(count) / max(count - 1, 1)
        if self.strategy == "linear":
            return np.asarray(self.start + (self.end - self.start) * progress)
        return np.asarray(self.start * (self.end / self.start) ** progress)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A process: requests per second (infinity: all at once) and burstiness, both above 0. A ramp replaces the rate."""

    rate: float = math.inf
    burstiness: float = 1.0
    ramp: Ramp | None = None


def arrival_times(arrivals: Arrivals, count: int, rng: np.random.Generator) -> Seconds:
    """When each of `count` requests arrives: seconds after the start, ascending.

    Without a ramp, times are scaled so that the last request arrives at count / rate: that is also what
    `vllm bench serve` does, and without it the rate offered differs by some percent from seed to seed.
    """
    if arrivals.ramp is None and math.isinf(arrivals.rate):
        return np.zeros(count)
    rates = arrivals.ramp.rates(count) if arrivals.ramp else np.full(count, arrivals.rate)
    times = np.cumsum(_unit_gaps(arrivals.burstiness, count, rng) / rates)
    if arrivals.ramp is None and count and times[-1] > 0:
        times *= count / arrivals.rate / times[-1]
    return np.asarray(times)


def _unit_gaps(burstiness: float, count: int, rng: np.random.Generator) -> Seconds:
    """Gaps with mean 1."""
    if math.isinf(burstiness):
        return np.ones(count)
    return rng.standard_gamma(burstiness, count) / burstiness
