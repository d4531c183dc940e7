"""Magnus's task files, and its estimator as it learns and decides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.experiments.paper.load import Load, task_pool
from loadgen.experiments.paper.magnus import PAPER, RoughCost, lesson_errors, read_pool
from loadgen.simulate.simulation import prices_of
from models.errors import UserError
from scheduler.serving_time.presets import V100_CHATGLM_6B
from tests.loadgen.experiments.paper.parts import COST, stage_of


def write_tasks(folder: Path) -> Path:
    """Two tasks: one whose answers are half as long as the input, and one of comments, which asks for the code."""
    words = "word " * 400
    translations = [
        {"instruction": "Translate.", "input": words[: 40 * n], "reference": words[: 20 * n]} for n in range(1, 9)
    ]
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
def test_the_answer_to_a_request_for_commented_code_is_the_code_or_the_comment(
    answers: str, tokens: set[int], tmp_path: Path
) -> None:
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
    requests = Load(3.0, 1300).requests(task_pool(0, count=200))
    errors = lesson_errors(stage, RoughCost(prices_of(V100_CHATGLM_6B), 1.5, 0.1, 0), requests, "")
    (_, own, profile), *later = errors
    assert len(later) >= 2 and own == pytest.approx(profile), "nothing was learned before the first lesson"
    assert all(learned < 0.6 * said for _, learned, said in later)
