"""The rest of an answer of which a part is there, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.length.distribution import LengthDistribution


def known() -> LengthDistribution:
    lengths = np.array([30, 10, 20, 10], dtype=np.float32)
    return LengthDistribution.of(lengths, np.array([1, 1, 1, 1], dtype=np.float32))


def test_equal_lengths_are_joined_and_ascend() -> None:
    assert known().lengths.tolist() == [10, 20, 30]
    assert known().weights.tolist() == [0.5, 0.25, 0.25]
    assert known().mean == 17.5


@pytest.mark.parametrize(("generated", "remaining"), [(0, 17.5), (9, 8.5), (10, 15), (19, 6), (20, 10), (29, 1)])
def test_the_remaining_length_is_the_mean_of_longer_answers_less_what_is_there(
    generated: int, remaining: float
) -> None:
    assert known().remaining(generated) == pytest.approx(remaining)


@pytest.mark.parametrize("generated", [30, 31, 1000])
def test_nothing_is_known_of_answers_longer_than_any(generated: int) -> None:
    assert known().remaining(generated) is None


def test_quantiles_are_the_least_lengths_that_enough_answers_do_not_exceed() -> None:
    one = LengthDistribution.of(np.array([30, 10, 20, 40], np.float32), np.ones(4, np.float32))
    assert [one.quantile(share) for share in (0.0, 0.25, 0.26, 0.5, 0.9, 1.0)] == [10, 10, 20, 20, 40, 40]


def test_stretching_keeps_the_mean_and_no_length_falls_below_one() -> None:
    one = LengthDistribution.of(np.array([10, 30], np.float32), np.ones(2, np.float32))
    assert one.stretched(1.5).lengths.tolist() == [5, 35] and one.stretched(1.5).mean == one.mean == 20
    assert one.stretched(3).lengths.tolist() == [1, 50]


@pytest.mark.parametrize("length", [float("nan"), float("inf"), -1.0])
def test_lengths_that_cannot_be_are_known_as_such(length: float) -> None:
    assert LengthDistribution.certain(0).is_possible and not LengthDistribution.certain(length).is_possible
