"""Which request is due when, and which the client will leave: decided before a run, repeatable by its seed.

The gaps of a process with rate r and burstiness b follow Gamma(shape=b, scale=1/(r*b)): mean 1/r, coefficient of
variation 1/sqrt(b). So b = 1 is a Poisson process, less is burstier, more is smoother and infinity is a metronome.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from loadgen.client.request import PreparedRequest, Prompt, RequestForm
from models.errors import UserError

Seconds: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A process: requests per second (infinity: all at once) and burstiness, both above 0."""

    rate: float = math.inf
    burstiness: float = 1.0


def arrival_times(arrivals: Arrivals, count: int, rng: np.random.Generator) -> Seconds:
    """When each of `count` requests arrives: seconds after the start, ascending.

    Times are scaled so that the last request arrives at count / rate: that is also what
    `vllm bench serve` does, and without it the rate offered differs by some percent from seed to seed.
    """
    if math.isinf(arrivals.rate):
        return np.zeros(count)
    times = np.cumsum(_unit_gaps(arrivals.burstiness, count, rng) / arrivals.rate)
    if count and times[-1] > 0:
        times *= count / arrivals.rate / times[-1]
    return np.asarray(times)


def _unit_gaps(burstiness: float, count: int, rng: np.random.Generator) -> Seconds:
    """Gaps with mean 1."""
    if math.isinf(burstiness):
        return np.ones(count)
    return rng.standard_gamma(burstiness, count) / burstiness


ARRIVALS, CANCELLATIONS = range(2)
"""Independent streams of random numbers, so that cancelling some requests does not move the others."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Requests and when each is due: seconds after the start, ascending."""

    requests: tuple[PreparedRequest, ...]
    times: tuple[float, ...]
    count: int
    """Requests, those that will follow these included."""


def schedule(
    prompts: Sequence[Prompt],
    form: RequestForm,
    arrivals: Arrivals | None = None,
    seed: int = 0,
    cancel_rate: float = 0.0,
    cancel_delay: float = 1.0,
) -> Schedule:
    """The schedule of a run; without `arrivals`, prompts are due at their own times, or all at once if they have none.

    Of a share `cancel_rate` of the requests the client leaves after `cancel_delay` seconds. Raises UserError.
    """
    timed = _timed(prompts, arrivals, np.random.default_rng([seed, ARRIVALS]))
    leaves = np.random.default_rng([seed, CANCELLATIONS]).random(len(prompts)) < cancel_rate
    *firsts, count = accumulate((1 + len(prompt.follow_ups) for _, prompt in timed), initial=0)
    requests = [
        form.fill(prompt, index, cancel_delay if leave else None)
        for index, (_, prompt), leave in zip(firsts, timed, leaves, strict=True)
    ]
    return Schedule(tuple(requests), tuple(time for time, _ in timed), count)


def _timed(
    prompts: Sequence[Prompt], arrivals: Arrivals | None, rng: np.random.Generator
) -> list[tuple[float, Prompt]]:
    if arrivals is not None:
        times = arrival_times(arrivals, len(prompts), rng).tolist()
        return list(zip(times, prompts, strict=True))
    given = [(prompt.arrival, prompt) for prompt in prompts if prompt.arrival is not None]
    if given and len(given) < len(prompts):
        raise UserError("only some of the prompts say when they arrive: give a --request-rate for all of them")
    if not given:
        return [(0.0, prompt) for prompt in prompts]
    return sorted(given, key=lambda pair: pair[0])
