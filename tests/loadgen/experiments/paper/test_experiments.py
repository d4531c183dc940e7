"""The points and runs of the papers' experiments: machines, loads, bounds, and what differs between points."""

from __future__ import annotations

import json

import pytest

from loadgen.experiments.paper import magnus, ssjf
from loadgen.experiments.paper.load import Pool
from loadgen.experiments.paper.row import FIGURES, PUBLISHED
from loadgen.experiments.paper.run import PAPERS
from loadgen.experiments.paper.trial import at_point
from loadgen.workload.lengths import Lengths
from scheduler.strategy import STRATEGIES
from tests.loadgen.experiments.paper.parts import stage_of


def test_scls_on_deepspeed_asks_algorithm_2_whether_a_slice_fits() -> None:
    """Its bounds of rows in the middle, 22, used to be left out."""
    stage, rules = stage_of(), set()
    for name in ("main-ds", "ablation-ds", "main"):
        plan = PAPERS["scls"].experiments[name](stage)
        for strategy in plan.strategies:
            rules.add((strategy, at_point(STRATEGIES[strategy], plan.points[0]).memory))
    assert rules == {
        *((name, "deepspeed") for name in ("pm", "ab", "lb", "scls")),
        *(("scls", "slice"), ("sls", "fixed"), ("so", "fixed"), ("ils", "whole"), ("ils-padded", "whole")),
    }


def test_ssjf_counts_as_its_authors_do_on_request() -> None:
    ours, theirs = (PAPERS["ssjf"].experiments[name](stage_of()) for name in ("burstiness", "burstiness-authors"))
    assert {(point.load.rate, point.load.sorted_gaps) for point in ours.points} == {(0.19, False)}
    assert {(point.load.rate, point.load.sorted_gaps) for point in theirs.points} == {(0.03, True)}
    assert [point.load.burstiness for point in ours.points] == pytest.approx([1.0, 2.5**-2, 4**-2, 5.5**-2])
    rates = PAPERS["ssjf"].experiments["rates-authors"](stage_of())
    assert not any(point.load.sorted_gaps for point in rates.points), "those gaps are a Poisson process's"
    assert "first quarter to be answered" in rates.setting


@pytest.mark.parametrize(("factor", "told"), [(10.0, ""), (0.0, "no aging; "), (2.5, "aging after 2.5 times")])
def test_ssjf_ages_as_its_authors_do_unless_told_otherwise(factor: float, told: str) -> None:
    made = ssjf.rates(stage_of(aging_factor=factor))
    assert {point.limits.aging.factor for point in made.points} == {factor}
    assert told in made.setting and ("aging" in made.setting) == bool(told)


def test_ssjf_takes_a_traces_times_where_there_are_any() -> None:
    [row] = ssjf.azure_times(stage_of()).rows
    assert "give --trace" in row.measured
    pool = Pool(tuple(Lengths(3.0 * place, 5, 5 + place) for place in range(60)), "with times")
    points = ssjf.azure_times(stage_of(pool)).points
    assert points and all(point.load.own_times for point in points)


@pytest.mark.parametrize(("table", "rows", "seconds"), [("table-1", 8, 6619.0), ("table-2", 2, 161.77)])
def test_the_two_times_that_batons_machines_are_solved_for_come_out(table: str, rows: int, seconds: float) -> None:
    stage = stage_of(Pool((), ""))
    [point] = [one for one in PAPERS["baton"].experiments[table](stage).points if one.x == rows]
    assert stage.play("fcfs-dynamic", point)["duration"] == pytest.approx(seconds, rel=1e-3)


def test_published_figures_are_as_printed() -> None:
    """Typed from the texts once more."""
    assert all(FIGURES[row[2]][2] for name in PUBLISHED for row in PUBLISHED[name] if len(row) == 6)
    ends = {name: [number for row in PUBLISHED[name] for number in row[3:5]] for name in ("scls-hf", "scls-ds")}
    assert ends["scls-hf"] == [
        *(232.3, 315.8, 82.4, 84.9, 79.8, 81.0, 61.6, 171.0, 78.4, 88.3, 74.6, 85.8, 100.3, 226.1),
    ]
    assert ends["scls-ds"] == [82.5, 191.9, 80.8, 91.1, 76.6, 88.9, 61.6, 171.0, 78.4, 88.3, 74.6, 85.8, 43.2, 86.1]
    over = {old: [*row[2:5]] for row in PUBLISHED["magnus-main"] for old in [row[1]] if row[2] == "mean"}
    assert over == {"vsq": ["mean", 80.4, 89.7], "ccb": ["mean", 60.3, 73.5]}
    jct = {name: [row[1][0] for row in PUBLISHED[f"ssjf-{name}"]] for name in ("rates", "burstiness")}
    assert jct == {"rates": [34.5, 39.6, 33.2, 43.7, 58.2, 43.0], "burstiness": [30.5, 39.0, 35.0, 37.6, 52.9, 41.5]}
    assert ssjf.ACCURACY == 0.615 and magnus.RMSE == 15.649
    assert json.dumps(PUBLISHED["baton-table-2"][0]) == "[2, 161.77, 83.43]"
