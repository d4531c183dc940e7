"""An experiment on the real engine as data, and how it is carried out: in rounds, and as far as one lets it.

Knows no paper and no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from loadgen.experiments.paper.load import Load
from loadgen.experiments.paper.row import AnyRow, Skipped
from loadgen.experiments.paper.stage import Experiment, Line, Stage
from loadgen.experiments.paper.trial import Trial, pooled
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.simulation import Machine
from scheduler.batching.batcher import Limits


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
    """How well lengths are known; None: as the stage has it."""


Rows: TypeAlias = Callable[[Sequence[Line]], Sequence[AnyRow]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and what to say of it."""

    title: str
    setting: str
    figures: tuple[str, ...]
    runs: Sequence[Run]
    """Those of one point stand beside each other."""
    rows: Rows
    skipped: Sequence[AnyRow] = ()
    """What cannot be told, whatever comes out."""
    sweeping: bool = False
    """Whether the rows speak of all points together, so that some of them tell nothing."""


def carry_out(stage: Stage, plan: Plan, rounds: int) -> Experiment:
    """Run everything once a round, each time beginning with another strategy; requests are new in each round.

    Ctrl-C leaves what was run until then, with rows for points that are complete.
    """
    tour = _Tour(stage, plan.runs)
    interrupted = False
    try:
        for number in range(rounds):
            tour.go_round(number, rounds)
    except KeyboardInterrupt:
        interrupted = True
    lines = tour.lines()
    return Experiment(
        plan.title,
        plan.setting,
        plan.figures,
        lines,
        [*plan.skipped, *tour.refusals(), *_rows(plan, tour.complete(lines))],
        interrupted,
    )


def _rows(plan: Plan, lines: Sequence[Line]) -> Sequence[AnyRow]:
    wanted = {run.point for run in plan.runs}
    enough = {line.point for line in lines} == wanted if plan.sweeping else lines
    return plan.rows(lines) if enough else ()


class _Tour:
    """The runs of a plan, and what came of them so far."""

    def __init__(self, stage: Stage, runs: Sequence[Run]) -> None:
        self._stage = stage
        self._runs = runs
        self._trials: dict[Run, list[Trial]] = {run: [] for run in runs}
        self._refused: dict[str, str] = {}

    def go_round(self, number: int, rounds: int) -> None:
        for run in _ordered(self._runs, number):
            if run.strategy not in self._refused:
                title = run.point if rounds == 1 else f"{run.point}, round {number + 1} of {rounds}"
                self._play(run, number, title)

    def _play(self, run: Run, number: int, title: str) -> None:
        load = replace(run.load, seed=run.load.seed + number)
        try:
            line = self._stage_of(run).run(run.strategy, run.machine, load, run.limits, title)
        except NotHere as error:
            self._refused[run.strategy] = str(error)
        else:
            self._trials[run].append(line.trial)

    def _stage_of(self, run: Run) -> Stage:
        return self._stage if run.prediction is None else replace(self._stage, prediction=run.prediction)

    def lines(self) -> list[Line]:
        return [
            Line(run.strategy, run.point, pooled(trials), tuple(trials) if len(trials) > 1 else ())
            for run, trials in self._trials.items()
            if trials
        ]

    def complete(self, lines: Sequence[Line]) -> list[Line]:
        """Those of points at which every strategy has run that can."""
        there = {(line.strategy, line.point) for line in lines}
        lacking = {
            run.point
            for run in self._runs
            if run.strategy not in self._refused and (run.strategy, run.point) not in there
        }
        return [line for line in lines if line.point not in lacking]

    def refusals(self) -> list[AnyRow]:
        return [Skipped(f"all that concerns {name}", why) for name, why in self._refused.items()]


def _ordered(runs: Sequence[Run], number: int) -> Iterator[Run]:
    """Point by point; which strategy is first moves on from round to round."""
    points: Mapping[str, list[Run]] = {run.point: [] for run in runs}
    for run in runs:
        points[run.point].append(run)
    for group in points.values():
        first = number % len(group)
        yield from (*group[first:], *group[:first])
