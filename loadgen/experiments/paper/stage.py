"""Where experiments run: strategies by name on one pool of requests, each run done once, however many rows want it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TypeAlias

from loadgen.bench.result import Json
from loadgen.experiments.paper.load import Load, Pool
from loadgen.experiments.paper.row import AnyRow, Skipped
from loadgen.experiments.paper.trial import Course, Player, Trial, pooled, run_trial
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.simulation import Machine, Watch
from scheduler.batching.batcher import Limits
from scheduler.strategy import STRATEGIES, Strategy

MINUTES_10 = 600.0
PREFILL_AHEAD = 1
GROUP_TOKENS = 8192
"""Cells of a prefill group, for strategies that form their own."""

Begin: TypeAlias = Callable[[str, int], Watch]
"""A run and its number of requests -> who is told how it goes on."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the user chose."""

    scale: float = 1.0
    seed: int = 0
    duration: float | None = None
    """Seconds of arrivals; None: as the paper has it."""
    rates: tuple[float, ...] | None = None
    """Requests a second, for the paper's whole machine; None: as the paper has it, as far as it tells."""


@dataclass(frozen=True, slots=True)
class Line:
    """A strategy at one point of a sweep."""

    strategy: str
    point: str
    trial: Trial
    rounds: tuple[Trial, ...] = ()
    """What `trial` is the mean of, where the spread is of interest."""


FEW = 30
"""Requests of the smallest run that any of the papers tells of: Baton's Target-2."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """What came of one of a paper's experiments."""

    title: str
    setting: str
    """Machine, load and what was assumed where the text says nothing."""
    figures: tuple[str, ...]
    """The figures of a trial to show."""
    lines: Sequence[Line]
    rows: Sequence[AnyRow]
    interrupted: bool = False
    """Whether it was broken off, so that this is not all of it."""

    @property
    def warning(self) -> str | None:
        """What makes its figures worth little; None where nothing does."""
        fewest = min((line.trial.requests for line in self.lines), default=math.inf)
        if fewest >= FEW:
            return None
        requests = "request" if fewest == 1 else "requests"
        return (
            f"Warning: runs of as few as {fewest:g} {requests} are compared here. With fewer than {FEW}, figures show "
            "chance rather than the strategies: raise --scale, --duration or --rates."
        )


def no_watch(name: str, total: int) -> Watch:
    return lambda ended: None


@dataclass(slots=True)
class Stage:
    """Runs what experiments ask for."""

    pool: Pool
    setting: Setting
    max_tokens: int
    prediction: Prediction = Prediction()
    begin: Begin = no_watch
    strategies: Mapping[str, Strategy] = field(default_factory=lambda: STRATEGIES)
    player: Player = run_trial
    _trials: dict[tuple[Course, Load], Trial] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        return name in self.strategies

    def known(self, names: Sequence[str]) -> list[str]:
        """Those of the names that are in the table."""
        return [name for name in names if self.has(name)]

    def elsewhere(self, pool: Pool, max_tokens: int) -> Stage:
        """The same for requests of an experiment's own."""
        return Stage(pool, self.setting, max_tokens, self.prediction, self.begin, self.strategies, self.player)

    def run(self, name: str, machine: Machine, load: Load, limits: Limits, point: str, runs: int = 1) -> Line:
        """A strategy under a load; with several runs, each with requests and arrivals of its own, their mean."""
        course = self._course(name, machine, limits)
        loads = [replace(load, seed=load.seed + number) for number in range(runs)]
        missing = [one for one in loads if (course, one) not in self._trials]
        if missing:
            watch = self.begin(f"{name}, {point}", load.count * len(missing))
            for number, one in enumerate(missing):
                after = _after(watch, number * load.count)
                self._trials[course, one] = self.player(course, one.requests(self.pool), one.seed, after)
        return Line(name, point, pooled([self._trials[course, one] for one in loads]))

    def _course(self, name: str, machine: Machine, limits: Limits) -> Course:
        return Course(self.strategies[name], machine, limits, self.max_tokens, self.prediction)

    def capacity(self, name: str, machine: Machine, limits: Limits, count: int) -> float:
        """Requests a second that a strategy serves when all are there from the start."""
        load = Load(float("inf"), count, seed=self.setting.seed)
        return self.run(name, machine, load, limits, "all at once").trial.throughput


def _after(watch: Watch, before: int) -> Watch:
    """For a run that comes after others that had `before` requests."""
    return lambda ended: watch(before + ended)


def missing(stage: Stage, names: Sequence[str]) -> list[AnyRow]:
    """What cannot be told of strategies that are not in the table."""
    return [
        Skipped(f"all that concerns {name}", f"no strategy {name} in the table")
        for name in names
        if not stage.has(name)
    ]


def limits(**changes: object) -> Limits:
    """Limits with the given ones in place of the server's defaults."""
    return replace(Limits(GROUP_TOKENS, PREFILL_AHEAD), **changes)  # type: ignore[arg-type]


def scaled(machine: Machine, scale: float) -> Machine:
    """As large a share of a machine as whole executors allow, one at least."""
    return replace(machine, workers=max(1, round(machine.workers * scale)))


def experiment_json(one: Experiment) -> Json:
    """Lines with all their figures, and the rows."""
    return {
        "title": one.title,
        "setting": one.setting,
        "warning": one.warning,
        "runs": [_line_json(line) for line in one.lines],
        "rows": [row.json() for row in one.rows],
    }


def _line_json(line: Line) -> Json:
    told: Json = {"strategy": line.strategy, "point": line.point} | asdict(line.trial)
    return told | ({"rounds": [asdict(one) for one in line.rounds]} if line.rounds else {})
