"""The forest: its means are scikit-learn's, its distributions agree with its means, and it learns."""

import numpy as np
import pytest

from scheduler.length.forest import Examples, Growth, grow
from tests.scheduler.length.examples import linear

SMALL = Growth(trees=12)


def test_it_predicts_what_scikit_learn_predicts() -> None:
    forest = grow(linear(), SMALL)
    unseen = linear(50, seed=1).features
    assert forest.predict(unseen) == pytest.approx(forest.regressor.predict(unseen), rel=1e-5)


def test_it_learns_what_the_lengths_depend_on() -> None:
    unseen = linear(100, seed=1)
    forest = grow(linear(1000), SMALL)
    errors = np.abs(forest.predict(unseen.features) - unseen.lengths)
    assert errors.mean() < 0.25 * np.abs(unseen.lengths - unseen.lengths.mean()).mean()


def test_the_mean_of_a_distribution_is_the_prediction() -> None:
    """Also that each tree's own bootstrap sample is found again: with other samples the means would differ."""
    forest = grow(linear(), SMALL)
    unseen = linear(20, seed=1).features
    means = [one.mean for one in forest.distributions(unseen)]
    assert means == pytest.approx(forest.predict(unseen).tolist(), rel=1e-4)


def test_what_remains_before_the_first_token_is_the_whole_prediction_and_shrinks_with_each() -> None:
    forest = grow(linear(), SMALL)
    one = linear(1, seed=1).features
    steps = np.arange(0, 40, 4, dtype=np.float32)
    [distribution] = forest.distributions(one)
    remaining = np.array([distribution.remaining(float(step)) for step in steps])
    assert remaining[0] == pytest.approx(forest.predict(one)[0], rel=1e-4)
    ends = remaining + steps
    assert (np.diff(ends) >= -1e-3).all()  # the longer a row runs, the longer its answer must be


def test_growing_tells_its_progress_and_is_repeatable() -> None:
    told: list[int] = []
    first = grow(linear(), SMALL, told.append)
    assert sum(told) == SMALL.trees
    again = grow(linear(), SMALL)
    unseen = linear(20, seed=1).features
    assert np.array_equal(first.predict(unseen), again.predict(unseen))


def test_wrong_features_are_refused() -> None:
    with pytest.raises(ValueError, match="wants 21 features a request, not shape"):
        grow(linear(), SMALL).predict(np.zeros((1, 20), dtype=np.float32))


@pytest.mark.parametrize(
    ("examples", "message"),
    [(linear(0), "no examples"), (Examples(linear(2).features * np.nan, linear(2).lengths), "finite")],
)
def test_nothing_is_grown_from_nothing_or_from_nonsense(examples: Examples, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grow(examples, SMALL)


def test_joined_examples_keep_the_newest() -> None:
    joined = linear(3, seed=1).joined(linear(2, seed=2), keep=4)
    assert joined.lengths.tolist() == [*linear(3, seed=1).lengths[1:], *linear(2, seed=2).lengths]
    assert len(joined.features) == 4
