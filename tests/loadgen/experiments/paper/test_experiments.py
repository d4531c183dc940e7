"""The points and runs of the papers' experiments, and Magnus's task files and estimator."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.experiments.paper import magnus, ssjf
from loadgen.experiments.paper.load import PaperLoad, Pool, task_pool
from loadgen.experiments.paper.magnus import PAPER, RoughCost, lesson_errors, read_pool
from loadgen.experiments.paper.row import FIGURES, PUBLISHED
from loadgen.experiments.paper.run import PAPERS
from loadgen.experiments.paper.trial import at_point
from loadgen.simulate.simulation import prices_of
from loadgen.workload.lengths import RequestLengths
from models.errors import UserError
from scheduler.serving_time.presets import V100_CHATGLM_6B
from scheduler.strategy import STRATEGIES
from tests.loadgen.experiments.paper.parts import COST, stage_of


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
    [row] = ssjf.rates(stage_of(), own_times=True).rows
    assert "give --trace" in row.measured
    pool = Pool(tuple(RequestLengths(3.0 * place, 5, 5 + place) for place in range(60)), "with times")
    points = ssjf.rates(stage_of(pool), own_times=True).points
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
    assert ends["scls-hf"] == [232.3, 315.8, 82.4, 84.9, 79.8, 81.0, 61.6, 171.0, 78.4, 88.3, 74.6, 85.8, 100.3, 226.1]
    assert ends["scls-ds"] == [82.5, 191.9, 80.8, 91.1, 76.6, 88.9, 61.6, 171.0, 78.4, 88.3, 74.6, 85.8, 43.2, 86.1]
    over = {old: [*row[2:5]] for row in PUBLISHED["magnus-main"] for old in [row[1]] if row[2] == "mean"}
    assert over == {"vsq": ["mean", 80.4, 89.7], "ccb": ["mean", 60.3, 73.5]}
    jct = {name: [row[1][0] for row in PUBLISHED[f"ssjf-{name}"]] for name in ("rates", "burstiness")}
    assert jct == {"rates": [34.5, 39.6, 33.2, 43.7, 58.2, 43.0], "burstiness": [30.5, 39.0, 35.0, 37.6, 52.9, 41.5]}
    assert ssjf.ACCURACY == 0.615 and magnus.RMSE == 15.649
    assert json.dumps(PUBLISHED["baton"][1]["table"][0]) == "[2, [161.77, 83.43]]"


def write_tasks(folder: Path) -> Path:
    """Two tasks: one whose answers are half as long as the input, and one of comments, which asks for the code."""
    words, sizes = "word " * 400, range(40, 321, 40)
    translations = [{"instruction": "Translate.", "input": words[:n], "reference": words[: n // 2]} for n in sizes]
    ask = "Add a comment and output the commented code."
    comments = [{"instruction": ask, "input": "abcd" * (50 + n), "reference": "abcd" * (n % 2 + 1)} for n in range(5)]
    (folder / "mt_x.jsonl").write_text("\n".join(json.dumps(one) for one in translations))
    (folder / "cc.jsonl").write_text("\n".join(json.dumps(one) for one in comments))
    return folder


def test_task_files_are_read_in_equal_parts_and_random_order(tmp_path: Path) -> None:
    pool = read_pool(write_tasks(tmp_path), "code", seed=1)
    labels = [sample.label for sample in pool.samples]
    assert sorted(labels) == ["cc"] * 5 + ["mt_x"] * 5 and labels != sorted(labels)
    assert "the task files cc, mt_x, 5 requests of each" in pool.source
    assert read_pool(tmp_path, "code", seed=1) == pool != read_pool(tmp_path, "code", seed=2)


@pytest.mark.parametrize(("answers", "tokens"), [("code", {52, 54, 56}), ("reference", {2, 3})])
def test_commented_code_is_answered_by_code_or_its_comment(answers: str, tokens: set[int], tmp_path: Path) -> None:
    pool = read_pool(write_tasks(tmp_path), answers, seed=0)
    found = {one.output_length for one, own in zip(pool.lengths, pool.samples, strict=True) if own.label == "cc"}
    assert found == tokens


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no file \*\.jsonl"):
        read_pool(tmp_path, "code", seed=0)


def test_correlations_are_those_of_the_texts(tmp_path: Path) -> None:
    stage = stage_of()
    stage.pool = read_pool(write_tasks(tmp_path), "reference", seed=0)
    [row, _] = PAPER.experiments["correlations"](stage).rows
    assert row.measured == "1.00" and row.published == "0.96 to 1.00"
    stage.pool = replace(stage.pool, samples=())
    [row] = PAPER.experiments["correlations"](stage).rows
    assert "give --tasks" in row.measured


def test_rough_machines_take_as_long_for_equal_rows() -> None:
    cost = RoughCost(COST, 1.5, 0.3, 0)
    factors = {rows: cost.prefill(rows, 100) / COST.prefill(rows, 100) for rows in (1, 2, 3)}
    assert len(set(factors.values())) == 3
    for rows, factor in factors.items():
        assert cost.decode(rows, 50, 7) == pytest.approx(factor * COST.decode(rows, 50, 7))
    assert RoughCost(COST, 1.5, 0.0, 0).prefill(4, 100) == pytest.approx(1.5 * COST.prefill(4, 100))


def test_the_estimator_learns_what_its_profile_does_not_tell() -> None:
    stage = stage_of()
    stage.max_tokens = 1024
    requests = PaperLoad(3.0, 1300).requests(task_pool(0, count=200))
    errors = lesson_errors(stage, RoughCost(prices_of(V100_CHATGLM_6B), 1.5, 0.1, 0), requests, "")
    (_, own, profile), *later = errors
    assert len(later) >= 2 and own == pytest.approx(profile), "nothing was learned before the first lesson"
    assert all(learned < 0.6 * said for _, learned, said in later)
