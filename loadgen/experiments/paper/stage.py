"""Plays the runs of experiments: with which requests and by which player, and each only once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from loadgen.experiments.paper.hardware import Hardware
from loadgen.experiments.paper.load import Load, Pool, outputs
from loadgen.experiments.paper.options import Experiments
from loadgen.experiments.paper.plan import Run
from loadgen.experiments.paper.trial import Course, Player, Trial, pooled, run_trial
from loadgen.simulate.node import Machine
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.simulation import Watch
from scheduler.batching.batcher import Limits
from scheduler.strategy import STRATEGIES

MINUTES_10 = 600.0
PREFILL_AHEAD = 1
GROUP_TOKENS = 8192
"""Cells of a prefill group, for strategies that form their own."""

Begin: TypeAlias = Callable[[str, int], Watch]
"""Shows the title of a run and its number of requests; returns a callback for the number that have ended."""


def no_watch(title: str, total: int) -> Watch:
    return lambda ended: None


@dataclass(slots=True)
class Stage:
    """Plays runs in the simulator, or on the real engine where there is a hardware."""

    pool: Pool
    setting: Experiments
    """The size that the user chose."""
    max_tokens: int
    """Tokens of the longest answer."""
    prediction: Prediction = Prediction()
    player: Player = run_trial
    hardware: Hardware | None = None
    begin: Begin = no_watch
    _trials: dict[tuple[Course, Load, Pool | None], Trial] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds of arrivals where the paper has ten minutes."""
        return self.setting.duration or MINUTES_10

    @property
    def rounds(self) -> int:
        return 1 if self.hardware is None else self.hardware.rounds

    def play(self, run: Run, number: int = 0) -> Trial:
        """The trial of a run in a round; the mean of several trials where it is repeated."""
        max_tokens = self.max_tokens if run.pool is None else max(outputs(run.pool.lengths))
        prediction = self.prediction if run.prediction is None else run.prediction
        strategy = STRATEGIES[run.strategy]
        if run.memory is not None:
            strategy = replace(strategy, memory=run.memory)
        course = Course(strategy, run.machine, run.limits, max_tokens, prediction)
        loads = [replace(run.load, seed=run.load.seed + number + repeat) for repeat in range(run.repeats)]
        missing = [load for load in loads if (course, load, run.pool) not in self._trials]
        if missing:
            title = f"{run.strategy}, {run.point}"
            title += f", round {number + 1} of {self.rounds}" if self.rounds > 1 else ""
            watch = self.begin(title, run.load.count * len(missing))
            for place, load in enumerate(missing):
                requests = load.requests(self.pool if run.pool is None else run.pool)
                after = _after(watch, place * load.count)
                self._trials[course, load, run.pool] = self.player(course, requests, load.seed, after)
        return pooled([self._trials[course, load, run.pool] for load in loads])

    def capacity(self, name: str, machine: Machine, limits: Limits, count: int) -> float:
        """Requests a second that a strategy serves when all are there from the start."""
        load = Load(float("inf"), count, seed=self.setting.seed)
        return self.play(Run(name, "all at once", machine, load, limits)).throughput

    def load(self, rate: float) -> Load:
        """Poisson arrivals at a rate."""
        count = max(2, round(rate * self.seconds)) if self.hardware is None else self.hardware.count(rate)
        return Load(rate, count, seed=self.setting.seed)


def _after(watch: Watch, before: int) -> Watch:
    """A watch for a run that comes after others that had `before` requests."""
    return lambda ended: watch(before + ended)


def limits(**changes: object) -> Limits:
    """Limits with the given ones in place of the server's defaults."""
    return replace(Limits(GROUP_TOKENS, PREFILL_AHEAD), **changes)  # type: ignore[arg-type]
