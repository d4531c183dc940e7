"""How an experiment is carried out, and what is left of it when it is broken off."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from loadgen.experiments.paper.load import chat_pool
from loadgen.experiments.paper.plan import Experiment, Plan, carry_out
from loadgen.experiments.paper.row import Row, claim
from loadgen.experiments.paper.scls import EXPERIMENTS
from loadgen.experiments.paper.trial import Line, Point, Trial
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.simulation import Watch
from tests.loadgen.experiments.paper.parts import point_at, stage_of, trial_of


def rows(lines: Sequence[Line]) -> list[Row]:
    return [claim("points", True, " ".join(f"{line.strategy}@{line.point.label}" for line in lines), "here")]


def plan(*, sweeping: bool = False) -> Plan:
    points = [point_at("slow"), point_at("fast", 2.0)]
    return Plan("title", "setting", ("throughput",), points, ("vs", "ccb"), rows, sweeping=sweeping)


def told(made: Experiment) -> list[str]:
    return [f"{line.strategy}@{line.point.label}" for line in made.lines]


def until(count: int) -> Callable[[str, Point], Trial]:
    """A player that is interrupted once `count` runs are done."""
    left = iter(range(count))

    def play(name: str, point: Point) -> Trial:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return trial_of()

    return play


def test_every_strategy_runs_at_each_point() -> None:
    made = carry_out(plan(), until(4))
    assert told(made) == ["vs@slow", "ccb@slow", "vs@fast", "ccb@fast"] and not made.interrupted
    assert [row.measured for row in made.rows] == ["yes: vs@slow ccb@slow vs@fast ccb@fast"]


def test_an_interrupt_leaves_what_ran_and_rows_of_complete_points() -> None:
    made = carry_out(plan(), until(3))
    assert made.interrupted and told(made) == ["vs@slow", "ccb@slow", "vs@fast"]
    assert [row.measured for row in made.rows] == ["yes: vs@slow ccb@slow"]
    none = carry_out(plan(), until(0))
    assert none.interrupted and none.lines == [] and none.rows == []


@pytest.mark.parametrize(("runs", "count"), [(3, 0), (4, 1)])
def test_rows_about_a_whole_sweep_need_all_of_it(runs: int, count: int) -> None:
    assert len(carry_out(plan(sweeping=True), until(runs)).rows) == count


def test_a_run_is_done_once_and_has_its_own_predictions() -> None:
    begun: list[str] = []

    def begin(title: str, total: int) -> Watch:
        begun.append(title)
        return lambda ended: None

    stage = stage_of(chat_pool(0, count=50), scale=0.125, rates=(8.0,))
    stage.begin = begin
    for _ in range(2):
        carry_out(EXPERIMENTS["main"](stage), stage.play)
    assert begun == ["sls, 8/s", "scls, 8/s"]
    own = Prediction(0.7)
    points = [point_at("usual"), point_at("own", prediction=own)]
    assert [stage.course("vs", one).prediction for one in points] == [stage.prediction, own]
