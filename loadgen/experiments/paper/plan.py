"""A paper's experiment as data, and how it is carried out: point by point, as far as an interrupt lets it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from engine.simulated.machine import Machine
from loadgen.experiments.paper.load import Load, Pool, outputs
from loadgen.experiments.paper.options import Experiments
from loadgen.experiments.paper.row import Row, round_figure
from loadgen.experiments.paper.trial import Figures, Line, Point, pool_trials, run_trial
from loadgen.result_file import Json
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.simulation import Watch
from scheduler.batching.batcher import Limits
from scheduler.options import Scheduling
from scheduler.strategy import STRATEGIES

FEW = 30  # requests of the smallest run that any of the papers tells of: Baton's Target-2
MINUTES_10 = 600.0
GROUP_TOKENS = 8192  # cells of a prefill group, for strategies that form their own


Rows: TypeAlias = Callable[[Sequence[Line]], Sequence[Row]]
Begin: TypeAlias = Callable[[str, int], Watch]
"""Shows the title of a run and its number of requests; returns a callback for the number that have ended."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An experiment: its points, the strategies that run at each, and the rows made of their trials."""

    title: str
    setting: str  # machine, load, and what was assumed where the text says nothing
    figures: tuple[str, ...] = ()  # the figures of a trial to show
    points: Sequence[Point] = ()
    strategies: Sequence[str] = ()
    rows: Rows = lambda lines: ()
    others: Sequence[Row] = ()  # rows that no run tells: of the requests alone, and what cannot be measured here
    sweeping: bool = False  # whether the rows speak of all points together, so that some of them tell nothing


@dataclass(frozen=True, slots=True)
class Experiment:
    """The result of a plan."""

    plan: Plan
    lines: Sequence[Line]
    rows: Sequence[Row]
    interrupted: bool = False  # whether it was broken off, so that this is not all of it

    @property
    def warning(self) -> str | None:
        """A reason to trust its figures little; None where there is none."""
        fewest = min((line.figures["requests"] for line in self.lines), default=FEW)
        if fewest >= FEW:
            return None
        requests = "request" if fewest == 1 else "requests"
        return (
            f"Warning: runs of as few as {fewest:g} {requests} are compared here. With fewer than {FEW}, figures show "
            "chance rather than the strategies: raise --scale, --duration or --rates."
        )


@dataclass(slots=True)
class Stage:
    """Plays the runs of experiments in the simulator, and each only once."""

    pool: Pool
    setting: Experiments
    max_tokens: int  # tokens of the longest answer
    prediction: Prediction = Prediction()
    begin: Begin = lambda title, total: lambda ended: None
    _trials: dict[tuple[str, Point], Figures] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds of arrivals where the paper has ten minutes."""
        return self.setting.duration or MINUTES_10

    def play(self, name: str, point: Point) -> Figures:
        """The trial of a strategy at a point; the mean of several trials where it is repeated."""
        one, load, pool = replace(point, label="", x=0.0, repeats=1), point.load, point.pool or self.pool
        runs = [(name, replace(one, load=replace(load, seed=load.seed + number))) for number in range(point.repeats)]
        missing = [run for run in runs if run not in self._trials]
        max_tokens = self.max_tokens if point.pool is None else max(outputs(pool.lengths))
        if missing:
            watch = self.begin(f"{name}, {point.label}", load.count * len(missing))
            for place, run in enumerate(missing):
                after = _after(watch, place * load.count)
                self._trials[run] = run_trial(STRATEGIES[name], run[1], pool, max_tokens, self.prediction, after)
        return pool_trials([self._trials[run] for run in runs])

    def capacity(self, name: str, machine: Machine, bounds: Limits, count: int) -> float:
        """Requests a second that a strategy serves when all are there from the start."""
        load = Load(float("inf"), count, seed=self.setting.seed)
        return self.play(name, Point("all at once", machine, load, bounds))["throughput"]

    def load(self, rate: float) -> Load:
        """Poisson arrivals at a rate."""
        return Load(rate, max(2, round(rate * self.seconds)), seed=self.setting.seed)


def _after(watch: Watch, before: int) -> Watch:
    """A watch for a run that comes after others that had `before` requests."""
    return lambda ended: watch(before + ended)


def limits(**options: Any) -> Limits:
    """Limits with the given options in place of the server's defaults."""
    return Limits.of(Scheduling(**options), GROUP_TOKENS, max_num_seqs=1)


def shrink(machine: Machine, scale: float) -> Machine:
    """A machine with this share of the executors, one at least."""
    return replace(machine, workers=max(1, round(machine.workers * scale)))


def carry_out(plan: Plan, play: Callable[[str, Point], Figures]) -> Experiment:
    """Play every strategy at every point. Ctrl-C leaves what was run until then, with rows for complete points."""
    lines: list[Line] = []
    interrupted = False
    try:
        for point in plan.points:
            for name in plan.strategies:
                lines.append(Line(name, point, play(name, point)))
    except KeyboardInterrupt:
        interrupted = True
    ran = [line.point.label for line in lines]
    complete = [line for line in lines if ran.count(line.point.label) == len(plan.strategies)]
    rows = plan.rows(complete) if complete and not (plan.sweeping and interrupted) else ()
    return Experiment(plan, lines, [*rows, *plan.others], interrupted)


def experiment_json(one: Experiment) -> Json:
    """Lines with all their figures, and the rows."""
    return {
        "title": one.plan.title,
        "setting": one.plan.setting,
        "warning": one.warning,
        "runs": [
            {"strategy": line.strategy, "point": line.point.label}
            | {name: round_figure(value) for name, value in line.figures.items()}
            for line in one.lines
        ],
        "rows": [row.document for row in one.rows],
    }
