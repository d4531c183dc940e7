"""A paper's experiment as data, and how it is carried out: in rounds, and as far as an interrupt lets it.

Knows no paper, and nothing of whether a simulator or the real engine plays its runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeAlias

from loadgen.experiments.paper.load import Load, Pool
from loadgen.experiments.paper.row import Row, round_figure, skip
from loadgen.experiments.paper.trial import Trial, pooled
from loadgen.result_file import Json
from loadgen.simulate.node import Machine
from loadgen.simulate.prediction import Prediction
from scheduler.batching.batcher import Limits

FEW = 30
"""Requests of the smallest run that any of the papers tells of: Baton's Target-2."""


class NotHere(Exception):
    """A strategy cannot run on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """One strategy at one point of a sweep."""

    strategy: str
    point: str
    machine: Machine
    load: Load
    limits: Limits
    prediction: Prediction | None = None
    """The predictor; None: one as good as the paper's."""
    pool: Pool | None = None
    """Requests of its own; None: those of all runs."""
    memory: str | None = None
    """The rule of memory in place of the strategy's own, by name."""
    repeats: int = 1
    """Number of runs with requests and arrivals of their own; only the mean is shown."""


@dataclass(frozen=True, slots=True)
class Line:
    """The figures of a strategy at one point of a sweep."""

    strategy: str
    point: str
    trial: Trial
    rounds: tuple[Trial, ...] = ()
    """The trials that `trial` is the mean of, where there was more than one round."""


Rows: TypeAlias = Callable[[Sequence[Line]], Sequence[Row]]
Play: TypeAlias = Callable[[Run, int], Trial]
"""Plays a run in the round with this number, from 0. Raises NotHere."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An experiment: its runs, and the rows made of their trials."""

    title: str
    setting: str
    """Machine, load and what was assumed where the text says nothing."""
    figures: tuple[str, ...]
    """The figures of a trial to show."""
    runs: Sequence[Run]
    """The runs, those of one point beside each other."""
    rows: Rows
    others: Sequence[Row] = ()
    """Rows that no run tells: figures of the requests alone, and what cannot be measured here."""
    sweeping: bool = False
    """Whether the rows speak of all points together, so that some of them tell nothing."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """The result of a plan."""

    plan: Plan
    lines: Sequence[Line]
    rows: Sequence[Row]
    interrupted: bool = False
    """Whether it was broken off, so that this is not all of it."""

    @property
    def warning(self) -> str | None:
        """A reason to trust its figures little; None where there is none."""
        fewest = min((line.trial.requests for line in self.lines), default=math.inf)
        if fewest >= FEW:
            return None
        requests = "request" if fewest == 1 else "requests"
        return (
            f"Warning: runs of as few as {fewest:g} {requests} are compared here. With fewer than {FEW}, figures show "
            "chance rather than the strategies: raise --scale, --duration or --rates."
        )


def carry_out(plan: Plan, play: Play, rounds: int = 1) -> Experiment:
    """Play every run once a round, each round beginning with another strategy.

    Ctrl-C leaves what was run until then, with rows for points that are complete.
    """
    trials: dict[Run, list[Trial]] = {run: [] for run in plan.runs}
    refused: dict[str, str] = {}
    interrupted = False
    try:
        for number in range(rounds):
            for run in _ordered(plan.runs, number):
                if run.strategy not in refused:
                    try:
                        trials[run].append(play(run, number))
                    except NotHere as error:
                        refused[run.strategy] = str(error)
    except KeyboardInterrupt:
        interrupted = True
    lines = [
        Line(run.strategy, run.point, pooled(done), tuple(done) if len(done) > 1 else ())
        for run, done in trials.items()
        if done
    ]
    refusals = [skip(f"all that concerns {name}", why) for name, why in refused.items()]
    lacking = {run.point for run, done in trials.items() if not done and run.strategy not in refused}
    complete = [line for line in lines if line.point not in lacking]
    rows = plan.rows(complete) if complete and not (plan.sweeping and lacking) else ()
    return Experiment(plan, lines, [*refusals, *rows, *plan.others], interrupted)


def _ordered(runs: Sequence[Run], number: int) -> Iterator[Run]:
    """Point by point; which strategy is first moves on from round to round."""
    points: Mapping[str, list[Run]] = {run.point: [] for run in runs}
    for run in runs:
        points[run.point].append(run)
    for group in points.values():
        first = number % len(group)
        yield from (*group[first:], *group[:first])


def scaled(machine: Machine, scale: float) -> Machine:
    """A machine with this share of the executors, one at least."""
    return replace(machine, workers=max(1, round(machine.workers * scale)))


def experiment_json(one: Experiment) -> Json:
    """Lines with all their figures, and the rows."""
    return {
        "title": one.plan.title,
        "setting": one.plan.setting,
        "warning": one.warning,
        "runs": [_line_json(line) for line in one.lines],
        "rows": [row.document for row in one.rows],
    }


def _line_json(line: Line) -> Json:
    figures: Json = {"strategy": line.strategy, "point": line.point} | _trial_json(line.trial)
    return figures | ({"rounds": [_trial_json(one) for one in line.rounds]} if line.rounds else {})


def _trial_json(one: Trial) -> Json:
    """The figures of a trial, to DIGITS significant digits, so that a file of them is small."""
    return {name: round_figure(value) for name, value in asdict(one).items()}
