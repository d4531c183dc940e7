"""Which request is due when, and which of them the client will leave: decided before a run, repeatable by its seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from loadgen.client.request import PreparedRequest, Prompt, RequestForm
from loadgen.load.arrivals import Arrivals, arrival_times
from models.errors import UserError

ARRIVALS, CANCELLATIONS = range(2)
"""Independent streams of random numbers, so that cancelling some requests does not move the others."""


@dataclass(frozen=True, slots=True)
class Cancellations:
    """The share of requests whose client leaves, 0 to 1, and after how many seconds."""

    rate: float = 0.0
    delay: float = 1.0


NO_CANCELLATIONS = Cancellations()


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
    cancellations: Cancellations = NO_CANCELLATIONS,
) -> Schedule:
    """The schedule of a run; without `arrivals`, prompts are due at their own times, or all at once if they have none.

    Raises UserError.
    """
    timed = _timed(prompts, arrivals, np.random.default_rng([seed, ARRIVALS]))
    leaves = np.random.default_rng([seed, CANCELLATIONS]).random(len(prompts)) < cancellations.rate
    *firsts, count = accumulate((1 + len(prompt.follow_ups) for _, prompt in timed), initial=0)
    requests = [
        form.fill(prompt, index, cancellations.delay if leave else None)
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
