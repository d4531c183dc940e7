"""Tokens that are still to come of an answer, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.length.distribution import LengthDistribution
from scheduler.remaining_length import remaining_length
from tests.scheduler.fakes import request

TWO = LengthDistribution.of(np.array([2, 6], dtype=np.float32), np.ones(2, dtype=np.float32))
"""An answer has 2 or 6 tokens, as likely each."""


@pytest.mark.parametrize(("generated", "left"), [(0, 4.0), (1, 3.0), (2, 4.0), (5, 1.0)])
def test_it_is_expected_given_what_has_been_generated(generated: int, left: float) -> None:
    one = request()
    one.distribution, one.generated = TWO, generated
    assert remaining_length(one) == left


@pytest.mark.parametrize(
    ("predicted", "generated", "left"), [(5.5, 0, 5.5), (5.5, 4, 1.5), (5.5, 7, 1.0), (99.0, 2, 6.0)]
)
def test_without_a_distribution_it_is_the_rest_of_the_prediction(predicted: float, generated: int, left: float) -> None:
    """Never less than the token that is made next, nor more than the 8 that it may generate."""
    one = request()
    one.predicted_length, one.generated = predicted, generated
    assert remaining_length(one) == left


def test_one_that_outlived_its_distribution_is_a_token_from_its_end() -> None:
    one = request()
    one.distribution, one.predicted_length, one.generated = TWO, TWO.mean, 6
    assert remaining_length(one) == 1.0


def test_where_nobody_predicts_it_is_all_that_it_may_generate() -> None:
    one = request()
    one.generated = 3
    assert remaining_length(one) == 5.0
