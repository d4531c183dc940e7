"""Rounds in which runners take turns at the same jobs, so that what else the machine does troubles all alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from loadgen.experiments.engine.job import Job, Turn
from loadgen.experiments.engine.memory import measured
from loadgen.experiments.engine.runners import Runner

Jobs = Callable[[int], Sequence[Job]]
"""The jobs of a round, by its number; other prompts each time, of the same lengths."""


@dataclass(slots=True)
class Standing:
    """The figures of one runner so far."""

    name: str
    rates: list[float] = field(default_factory=list)
    """Tokens/s of each round that counts: tokens asked for, over all of the time."""
    steps: list[float] = field(default_factory=list)
    """Median seconds of a step, a figure a round."""
    peak_bytes: int | None = None
    """Memory taken in the round that warms up."""
    trouble: str | None = None
    """Why it cannot run here, if it cannot."""

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def step(self) -> float:
        return statistics.median(self.steps)


def contest(
    runners: Sequence[Runner], jobs: Jobs, rounds: int, device: torch.device, watch: Callable[[], None] = lambda: None
) -> list[Standing]:
    """Play a round that warms up and shows the memory taken, then `rounds` that count; each begins with another runner.

    A runner that fails says why and is left out from then on.
    """
    standings = [Standing(runner.name) for runner in runners]
    pairs = list(zip(runners, standings, strict=True))
    for number in range(rounds + 1):
        work = jobs(number)
        first = number % len(pairs)
        for runner, standing in (*pairs[first:], *pairs[:first]):
            if standing.trouble is None:
                _take_turn(runner, standing, work, device, counts=number > 0)
            watch()
    return standings


def _take_turn(runner: Runner, standing: Standing, jobs: Sequence[Job], device: torch.device, *, counts: bool) -> None:
    try:
        if counts:
            turn = runner.run(jobs)
        else:
            turn, standing.peak_bytes = measured(lambda: runner.run(jobs), device)
        _check(turn, jobs)
    except Exception as error:
        standing.trouble = f"{type(error).__name__}: {error}"
        return
    if counts:
        standing.rates.append(sum(job.output_len for job in jobs) / turn.seconds)
        standing.steps.append(statistics.median(turn.steps or (0.0,)))


def _check(turn: Turn, jobs: Sequence[Job]) -> None:
    wanted = tuple(job.output_len for job in jobs)
    if turn.lengths != wanted:
        wrong = sum(made != want for made, want in zip(turn.lengths, wanted, strict=True))
        raise RuntimeError(f"{wrong} of {len(wanted)} answers have another length than was asked for")
