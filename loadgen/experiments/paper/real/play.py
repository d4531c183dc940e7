"""A course on executors that are there and take real time: the same figures as of a simulation."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.experiments.paper.trial import Course, Trial, assembled, known, trial
from loadgen.experiments.recorder import Prompts, Recorder
from loadgen.experiments.relay import Relay
from loadgen.simulate.simulation import Simulation, Watch
from loadgen.workload.lengths import Lengths
from scheduler.serving_time.bilinear import Bilinear
from scheduler.worker import Port


async def play_course(
    course: Course,
    ports: Sequence[Port],
    relay: Relay,
    requests: Sequence[Lengths],
    prompts: Prompts,
    seed: int,
    watch: Watch,
) -> Trial:
    """`record_course`, as the figures of a trial."""
    return trial(*await record_course(course, ports, relay, requests, prompts, seed, watch))


async def record_course(
    course: Course,
    ports: Sequence[Port],
    relay: Relay,
    requests: Sequence[Lengths],
    prompts: Prompts,
    seed: int,
    watch: Watch,
) -> tuple[Simulation, float]:
    """Serve the requests, in order of arrival, on executors that run and report to the relay.

    `seed` is of the predictions' errors. Returns what became of them, and the share of slices that ended early. Raises
    PlayError when a request fails, and StrategyError.
    """
    recorder = Recorder(ports, relay, requests, prompts, course.max_tokens)
    prediction, serving_time = known(course), _serving_time(course)
    parts, _ = assembled(course, serving_time)
    await recorder.warm_up(parts, prediction.source(0))
    parts, slices = assembled(course, serving_time)
    done = await recorder.record(parts, prediction.source(seed), watch)
    return done, slices.early_share


def _serving_time(course: Course) -> Bilinear | None:
    """The machine's profile; nobody has measured one with weights that a strategy wants kept in its own way."""
    cost = course.machine.cost
    return cost if isinstance(cost, Bilinear) and course.strategy.quantization is None else None
