"""Accuracy by hand, SSJF's figures and the four strategies of Magnus's Table II on data whose answer is known; who is
judged by which answers, and who wins."""

import numpy as np
import pytest

from scheduler.length import evaluation as module
from scheduler.length.evaluation import PredictorContestant, Split, accuracy, judge, split
from scheduler.length.features import FEATURES, Ablation
from scheduler.length.forest import Examples, Forest, Growth, grow

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
    return accuracy(module.means(module.predict(ablation, data, SMALL)), data.test.lengths)


def test_errors_and_order_by_hand() -> None:
    found = accuracy(floats(1, 2, 3, 4), floats(1, 4, 3, 8))
    # five pairs agree, one (the second and third) does not
    assert [found[name] for name in ("mae", "rmse", "tau")] == pytest.approx([1.5, 5**0.5, 4 / 6])
    assert np.isnan(accuracy(floats(1, 1), floats(1, 2))["tau"]), "a constant prediction keeps no order"


def test_the_split_holds_out_a_share_of_each_task_and_loses_none() -> None:
    examples = Examples(np.arange(30, dtype=np.float32)[:, None], np.arange(30, dtype=np.float32))
    parts = split(examples, ["a"] * 20 + ["b"] * 10, 0.2, seed=0)
    assert sorted(parts.test_tasks) == ["a"] * 4 + ["b"] * 2
    assert sorted([*parts.train.lengths, *parts.test.lengths]) == list(range(30))
    assert all((one < 20) == (task == "a") for one, task in zip(parts.test.lengths, parts.test_tasks, strict=True))


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
        module.predict(ablation, data, SMALL, told.append)
        assert sum(told) == module.grown_trees(ablation, data, SMALL)


def test_a_task_never_seen_gets_the_mean() -> None:
    examples, _ = two_tasks(20)
    data = Split(examples, examples, ["old"] * 20, ["new"] * 20, np.ones(20, dtype=bool))
    expected = accuracy(np.full(20, examples.lengths.mean(), dtype=np.float32), examples.lengths)
    assert evaluate(Ablation.RAFT, data)["mae"] == pytest.approx(expected["mae"])


def test_tasks_can_be_held_out_whole() -> None:
    examples = Examples(np.zeros((30, 1), dtype=np.float32), np.arange(30, dtype=np.float32))
    parts = split(examples, ["a", "b", "c"] * 10, 0.3, seed=0, by_task=True)
    assert len(parts.test) == parts.held.sum() == 10
    assert set(parts.test_tasks).isdisjoint(parts.train_tasks) and len(set(parts.test_tasks)) == 1
    assert module.grown_trees(Ablation.RAFT, parts, SMALL) == 0, "a forest that is asked nothing is not grown"


def test_the_guess_of_all_lengths_covers_nine_in_ten_of_them() -> None:
    examples = Examples(np.zeros((100, 1), dtype=np.float32), np.arange(1, 101, dtype=np.float32))
    assert module.covered([module.guess(examples)] * 100, examples.lengths) == pytest.approx(0.9)


def answers(inputs: range, length: float) -> Examples:
    """Answers that are all as long, to inputs of these lengths."""
    features = np.array([[0.0, number] for number in inputs], dtype=np.float32)
    return Examples(features, np.full(len(inputs), length, dtype=np.float32))


def forest(examples: Examples) -> Forest:
    return grow(examples, Growth(trees=2))


def predicted(length: float) -> np.ndarray:
    return floats(*[length] * 10)


def test_the_errors_are_means_and_the_least_wins() -> None:
    held_out, old = answers(range(10), 50), forest(answers(range(10), 60))
    contest = judge(held_out, predicted(47), old)
    assert contest.errors == {PredictorContestant.NEW: 3, PredictorContestant.OLD: 10, PredictorContestant.PLAIN: 45.5}
    assert (contest.rows, contest.winner) == (10, PredictorContestant.NEW)
    assert judge(held_out, predicted(70), old).winner is PredictorContestant.OLD
    assert judge(answers(range(10), 4.5), predicted(70), old).winner is PredictorContestant.PLAIN
    assert judge(held_out, predicted(60), old).winner is PredictorContestant.NEW, "of equally good ones"


def test_the_old_forest_is_judged_by_answers_that_it_has_not_learned_from_and_so_are_the_others() -> None:
    contest = judge(answers(range(10), 50), predicted(47), forest(answers(range(4), 50)))
    judged = contest.errors[PredictorContestant.OLD], contest.errors[PredictorContestant.PLAIN]
    assert (contest.rows, judged) == (6, (0, 43.5))


def test_where_it_has_learned_from_most_of_them_it_takes_no_part() -> None:
    contest = judge(answers(range(10), 50), predicted(47), forest(answers(range(6), 50)))
    assert (contest.rows, set(contest.errors)) == (10, {PredictorContestant.NEW, PredictorContestant.PLAIN})


EDGES = (10.0, 20.0)


def test_accuracy_and_f1_count_classes() -> None:
    """Classes 0 0 1 2, of which the last is taken for 1: F1 is 1, 2/3 and 0."""
    one = module.quality(floats(1, 9, 10, 19), floats(2, 3, 12, 30), EDGES)
    assert one["accuracy"] == 0.75 and one["f1"] == pytest.approx(5 / 9)
    assert one["mae"] == pytest.approx((1 + 6 + 2 + 11) / 4) and one["tau"] == 1.0
