"""Who is judged by which answers, and who wins."""

import numpy as np

from scheduler.length.evaluation import PredictorContestant, judge
from scheduler.length.forest import Examples, Forest, Growth, grow


def answers(inputs: range, length: float) -> Examples:
    """Answers that are all as long, to inputs of these lengths."""
    features = np.array([[0.0, number] for number in inputs], dtype=np.float32)
    return Examples(features, np.full(len(inputs), length, dtype=np.float32))


def forest(examples: Examples) -> Forest:
    return grow(examples, Growth(trees=2))


def predicted(length: float) -> np.ndarray:
    return np.full(10, length, dtype=np.float32)


def test_the_errors_are_means_and_the_least_wins() -> None:
    held_out, old = answers(range(10), 50), forest(answers(range(10), 60))
    contest = judge(held_out, predicted(47), old)
    assert contest.errors == {PredictorContestant.NEW: 3, PredictorContestant.OLD: 10, PredictorContestant.PLAIN: 45.5}
    assert (contest.rows, contest.winner) == (10, PredictorContestant.NEW)
    assert judge(held_out, predicted(70), old).winner is PredictorContestant.OLD
    assert judge(answers(range(10), 4.5), predicted(70), old).winner is PredictorContestant.PLAIN


def test_of_equally_good_ones_the_new_forest_is_taken() -> None:
    assert (
        judge(answers(range(10), 50), predicted(60), forest(answers(range(10), 60))).winner is PredictorContestant.NEW
    )


def test_the_old_forest_is_judged_by_answers_that_it_has_not_learned_from_and_so_are_the_others() -> None:
    contest = judge(answers(range(10), 50), predicted(47), forest(answers(range(4), 50)))
    assert (contest.rows, contest.errors[PredictorContestant.OLD], contest.errors[PredictorContestant.PLAIN]) == (
        6,
        0,
        43.5,
    )


def test_where_it_has_learned_from_most_of_them_it_takes_no_part() -> None:
    contest = judge(answers(range(10), 50), predicted(47), forest(answers(range(6), 50)))
    assert (contest.rows, set(contest.errors)) == (10, {PredictorContestant.NEW, PredictorContestant.PLAIN})
