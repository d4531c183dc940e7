"""Accuracy by hand, the split, and the four strategies of Table II on data whose answer is known."""

import numpy as np
import pytest

from scheduler.length.evaluation import Split, accuracy, covered, grown_trees, guess, means, predict, split
from scheduler.length.features import FEATURES, Ablation
from scheduler.length.forest import Examples, Growth

SMALL = Growth(trees=10)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def two_tasks(rows: int = 400) -> tuple[Examples, list[str]]:
    """One task answers with as many tokens as it is given, the other with five times as many; feature 0 tells which."""
    rng = np.random.default_rng(0)
    table = np.zeros((rows, FEATURES), dtype=np.float32)
    table[:, 0] = rng.integers(0, 2, rows)
    table[:, -1] = rng.integers(1, 100, rows)
    return Examples(table, table[:, -1] * (1 + 4 * table[:, 0])), [str(task) for task in table[:, 0]]


def evaluate(ablation: Ablation, data: Split) -> dict[str, float]:
    return accuracy(means(predict(ablation, data, SMALL)), data.test.lengths)


def test_errors_and_order_by_hand() -> None:
    found = accuracy(floats(1, 2, 3, 4), floats(1, 4, 3, 8))
    assert [found["mae"], found["rmse"]] == pytest.approx([1.5, 5**0.5])
    assert found["tau"] == pytest.approx(4 / 6)  # five pairs agree, one (the second and third) does not


def test_a_constant_prediction_keeps_no_order() -> None:
    assert np.isnan(accuracy(floats(1, 1), floats(1, 2))["tau"])


def test_the_split_holds_out_a_share_of_each_task_and_loses_none() -> None:
    examples = Examples(np.arange(30, dtype=np.float32)[:, None], np.arange(30, dtype=np.float32))
    parts = split(examples, ["a"] * 20 + ["b"] * 10, 0.2, seed=0)
    assert sorted(parts.test_tasks) == ["a"] * 4 + ["b"] * 2
    assert sorted([*parts.train.lengths, *parts.test.lengths]) == list(range(30))
    assert all(
        (length < 20) == (task == "a") for length, task in zip(parts.test.lengths, parts.test_tasks, strict=True)
    )


def test_each_strategy_sees_what_it_may() -> None:
    examples, tasks = two_tasks()
    data = split(examples, tasks, 0.25, seed=0)
    errors = {ablation: evaluate(ablation, data)["mae"] for ablation in Ablation}
    assert errors[Ablation.UILO] == pytest.approx(float(np.abs(data.test.features[:, -1] - data.test.lengths).mean()))
    # One forest for both tasks that cannot tell them apart would be as bad as no forest.
    assert errors[Ablation.RAFT] < 0.2 * errors[Ablation.UILO]
    assert errors[Ablation.INST] < 0.2 * errors[Ablation.UILO]
    assert errors[Ablation.USIN] < 0.5 * errors[Ablation.UILO]


def test_progress_counts_every_tree() -> None:
    examples, tasks = two_tasks(80)
    data = split(examples, tasks, 0.25, seed=0)
    for ablation in Ablation:
        told: list[int] = []
        predict(ablation, data, SMALL, told.append)
        assert sum(told) == grown_trees(ablation, data, SMALL)


def test_a_task_never_seen_gets_the_mean() -> None:
    examples, _ = two_tasks(20)
    data = Split(examples, examples, ["old"] * 20, ["new"] * 20, np.ones(20, dtype=bool))
    mean = examples.lengths.mean()
    expected = accuracy(np.full(20, mean, dtype=np.float32), examples.lengths)
    assert evaluate(Ablation.RAFT, data)["mae"] == pytest.approx(expected["mae"])


def test_tasks_can_be_held_out_whole() -> None:
    examples = Examples(np.zeros((30, 1), dtype=np.float32), np.arange(30, dtype=np.float32))
    parts = split(examples, ["a", "b", "c"] * 10, 0.3, seed=0, by_task=True)
    assert len(parts.test) == parts.held.sum() == 10
    assert set(parts.test_tasks).isdisjoint(parts.train_tasks) and len(set(parts.test_tasks)) == 1
    assert grown_trees(Ablation.RAFT, parts, SMALL) == 0, "a forest that is asked nothing is not grown"


def test_the_guess_of_all_lengths_covers_nine_in_ten_of_them() -> None:
    examples = Examples(np.zeros((100, 1), dtype=np.float32), np.arange(1, 101, dtype=np.float32))
    assert covered([guess(examples)] * 100, examples.lengths) == pytest.approx(0.9)
