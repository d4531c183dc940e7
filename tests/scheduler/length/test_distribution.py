"""The rest of an answer of which a part is there, by hand."""

from math import inf, nan

import numpy as np
import pytest

from scheduler.length.prediction import RANKS, LengthDistribution


def known() -> LengthDistribution:
    lengths = np.array([30, 10, 20, 10], dtype=np.float32)
    return LengthDistribution.of(lengths, np.array([1, 1, 1, 1], dtype=np.float32))


def test_equal_lengths_are_joined_and_ascend() -> None:
    assert (known().lengths.tolist(), known().weights.tolist()) == ([10, 20, 30], [0.5, 0.25, 0.25])
    assert known().mean == 17.5


REST = [(0, 17.5), (9, 8.5), (10, 15), (19, 6), (20, 10), (29, 1), (30, None)]


@pytest.mark.parametrize(("generated", "remaining"), REST)
def test_the_rest_is_the_mean_of_longer_answers_less_what_is_there(generated: int, remaining: float | None) -> None:
    assert known().remaining(generated) == remaining


def test_quantiles_are_the_least_lengths_that_enough_answers_do_not_exceed() -> None:
    one = LengthDistribution.of(np.array([30, 10, 20, 40], np.float32), np.ones(4, np.float32))
    assert [one.quantile(share) for share in (0.0, 0.25, 0.26, 0.5, 0.9, 1.0)] == [10, 10, 20, 20, 40, 40]


def test_the_ranks_of_a_length_are_spread_over_its_own_probability_and_if_it_was_cut_over_that_of_longer_ones() -> None:
    half = np.array([0.0, 1.0]) * (1 - 1 / RANKS) + 0.5 / RANKS  # the first and last of ranks from 0 to 1
    for length, cut, low, high in ((10, False, 0, 0.5), (20, True, 0.5, 1), (9, False, 0, 0), (25, True, 0.75, 1)):
        ranks = known().ranks(length, cut=cut)
        assert len(ranks) == RANKS and ranks[[0, -1]] == pytest.approx(low + (high - low) * half)


def test_ranks_that_are_mapped_bring_the_quantiles_to_other_lengths() -> None:
    one = LengthDistribution.of(np.arange(1, 101, dtype=np.float32), np.ones(100, np.float32))
    other = one.mapped((0.2, 0.7), (0.05, 0.95))
    assert [other.quantile(share) for share in (0.05, 0.5, 0.95)] == [20, 45, 70]
    assert other.weights.sum() == pytest.approx(1) and other.lengths is one.lengths
    assert one.mapped((0.05, 0.95), (0.05, 0.95)).weights == pytest.approx(one.weights)


@pytest.mark.parametrize("ranks", [(0.0, 1.0), (0.0, 0.0), (1.0, 1.0)])
def test_answers_beyond_all_that_are_known_widen_a_distribution_to_its_ends(ranks: tuple[float, float]) -> None:
    other = known().mapped(ranks, (0.05, 0.95))
    assert other.is_possible and other.weights.sum() == pytest.approx(1)
    assert ranks == (1.0, 1.0) or other.quantile(0.05) == 10
    assert ranks == (0.0, 0.0) or other.quantile(0.96) == 30


def test_lengths_that_cannot_be_are_known_as_such() -> None:
    assert [LengthDistribution.certain(one).is_possible for one in (0, nan, inf, -1)] == [True, False, False, False]
