"""How an experiment is carried out: in which order, over rounds, and what is left of it when it is broken off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from loadgen.experiments.paper.load import Load
from loadgen.experiments.paper.plan import Experiment, Line, NotHere, Plan, Run, carry_out
from loadgen.experiments.paper.report import report
from loadgen.experiments.paper.row import Row, claim
from loadgen.experiments.paper.stage import limits
from loadgen.experiments.paper.trial import Course, Trial
from loadgen.simulate.prediction import Prediction
from tests.loadgen.experiments.paper.parts import HARDWARE, Scripted, stage_of, trial_of

MACHINE = HARDWARE.machine(HARDWARE.context(), 4)


def rows(lines: Sequence[Line]) -> list[Row]:
    return [claim("points", True, " ".join(f"{line.strategy}@{line.point}" for line in lines), "here")]


def plan(*, sweeping: bool = False) -> Plan:
    runs = [
        Run(name, point, MACHINE, Load(rate, 3), limits())
        for point, rate in (("slow", 1.0), ("fast", 2.0))
        for name in ("vs", "ccb")
    ]
    return Plan("title", "setting", ("throughput",), runs, rows, sweeping=sweeping)


def told(made: Experiment) -> list[str]:
    return [f"{line.strategy}@{line.point}" for line in made.lines]


def test_rounds_take_turns_with_new_requests_and_have_their_mean() -> None:
    player = Scripted(lambda course, seed: trial_of(1.0 + seed))
    made = carry_out(plan(), stage_of(player).play, 2)
    assert player.names == ["vs", "ccb", "vs", "ccb", "ccb", "vs", "ccb", "vs"]
    assert [seed for _, _, seed in player.asked] == [0] * 4 + [1] * 4
    assert told(made) == ["vs@slow", "ccb@slow", "vs@fast", "ccb@fast"]
    assert all(line.trial.throughput == 1.5 and len(line.rounds) == 2 for line in made.lines)
    assert not made.interrupted
    console = Console(width=160)
    with console.capture() as shown:
        console.print(report(made))
    assert "1.50 ±0.50" in shown.get()


def test_a_run_may_have_predictions_of_its_own() -> None:
    player, own = Scripted(), Prediction(0.7)
    runs = [Run("vs", "usual", MACHINE, Load(1.0, 3), limits()), Run("vs", "own", MACHINE, Load(1.0, 3), limits(), own)]
    stage = stage_of(player)
    carry_out(replace(plan(), runs=runs), stage.play)
    assert [course.prediction for course, _, _ in player.asked] == [stage.prediction, own]


def test_one_round_has_no_spread() -> None:
    made = carry_out(plan(), stage_of(Scripted()).play, 1)
    assert all(line.rounds == () for line in made.lines)


def interrupting(after: int) -> Scripted:
    """Ctrl-C once so many runs are done."""

    def answer(course: Course, seed: int) -> Trial:
        if len(player.asked) > after:
            raise KeyboardInterrupt
        return trial_of()

    player = Scripted(answer)
    return player


def test_an_interrupt_leaves_what_ran_and_rows_of_complete_points() -> None:
    made = carry_out(plan(), stage_of(interrupting(3)).play, 1)
    assert made.interrupted
    assert told(made) == ["vs@slow", "ccb@slow", "vs@fast"]
    assert [row.measured for row in made.rows] == ["yes: vs@slow ccb@slow"]
    none = carry_out(plan(), stage_of(interrupting(0)).play, 1)
    assert none.interrupted and none.lines == [] and none.rows == []


def test_rows_about_a_whole_sweep_need_all_of_it() -> None:
    assert carry_out(plan(sweeping=True), stage_of(interrupting(3)).play, 1).rows == []
    assert len(carry_out(plan(sweeping=True), stage_of(interrupting(4)).play, 2).rows) == 1, "one round is enough"


def test_a_strategy_that_cannot_run_here_is_skipped_with_its_reason() -> None:
    def answer(course: Course, seed: int) -> Trial:
        if course.strategy.name == "ccb":
            raise NotHere("no kernels")
        return trial_of()

    player = Scripted(answer)
    made = carry_out(plan(), stage_of(player).play, 1)
    assert player.names == ["vs", "ccb", "vs"], "it is not tried twice"
    assert told(made) == ["vs@slow", "vs@fast"]
    skipped, other = made.rows
    assert skipped.measured == "skipped: no kernels"
    assert other.measured == "yes: vs@slow vs@fast", "the others' points are complete without it"
