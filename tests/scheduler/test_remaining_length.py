"""Tokens that are still to come of an answer, by hand."""

import numpy as np
import pytest

from engine.sampling.params import SamplingParams
from scheduler.length.likely import length_interval
from scheduler.length.prediction import LengthDistribution
from scheduler.remaining_length import Calibration, likely_lengths, remaining_length
from scheduler.request import Request
from tests.scheduler.fakes import request

TWO = LengthDistribution.of(np.array([2, 6], dtype=np.float32), np.ones(2, dtype=np.float32))
"""An answer has 2 or 6 tokens, as likely each."""


@pytest.mark.parametrize(("generated", "left"), [(0, 4.0), (1, 3.0), (2, 4.0), (5, 1.0)])
def test_it_is_expected_given_what_has_been_generated(generated: int, left: float) -> None:
    assert remaining_length(request(distribution=TWO, generated=generated)) == left


REST = [(5.5, 0, 5.5), (5.5, 4, 1.5), (5.5, 7, 1.0), (99.0, 2, 6.0), (None, 3, 5.0)]


@pytest.mark.parametrize(("predicted", "generated", "left"), REST)
def test_else_it_is_the_rest_of_the_prediction(predicted: float | None, generated: int, left: float) -> None:
    """Never less than the token that is made next, nor more than the 8 that it may generate, which it is if unknown."""
    assert remaining_length(request(predicted_length=predicted, generated=generated)) == left


@pytest.mark.parametrize(("generated", "left"), [(0, 7.0), (3, 4.0), (7, 1.0)])
def test_it_is_no_less_than_what_was_asked_for_at_least(generated: int, left: float) -> None:
    one = request(sampling=SamplingParams(8, min_tokens=7), distribution=TWO, generated=generated)
    assert (remaining_length(one), length_interval(one)) == (left, [7, 7, 7])


@pytest.mark.parametrize(("stop", "left"), [((), 8.0), (("end",), 5.0)])
def test_it_is_all_that_is_allowed_where_nothing_else_ends_it(stop: tuple[str, ...], left: float) -> None:
    one = request(sampling=SamplingParams(8, ignore_eos=True, stop=stop), predicted_length=5.0)
    assert remaining_length(one) == left


def test_one_that_outlived_its_distribution_is_likely_to_get_as_old_again() -> None:
    """A new server knew short answers only, thought every row a token from its end, and promised 13 places 61 ms."""
    one = request(max_tokens=100, distribution=TWO, predicted_length=TWO.mean, generated=6)
    assert remaining_length(one) == 6.0
    assert likely_lengths(one, 4) == pytest.approx([1.0, 6 * 0.6, 10.0, 42.0])


def ended(length: float, generated: int) -> Request:
    return request(max_tokens=1000, predicted_length=length, generated=generated)


def test_a_correction_counts_for_what_is_predicted_whatever_has_been_generated() -> None:
    assert remaining_length(request(max_tokens=100, predicted_length=10.0, correction=3.0, generated=5)) == 25.0
    spread = request(max_tokens=100, distribution=TWO, correction=3.0, generated=6)
    assert remaining_length(spread) == 12.0, "6 tokens have come of 6 or 18"


def test_a_prediction_counts_for_what_the_nearest_turned_out_to_be() -> None:
    calibration = Calibration()
    for number in range(200):
        calibration.add(ended(10.0 + number % 5, 40))
        calibration.add(ended(100.0 + number % 5, 50))
    assert calibration.factor(ended(12.0, 0), ()) == pytest.approx(40 / 12, rel=0.2)
    assert calibration.factor(ended(102.0, 0), ()) == pytest.approx(50 / 102, rel=0.05)


def test_predictions_upside_down_are_put_right_as_answers_end() -> None:
    calibration, lengths = Calibration(), (10.0, 100.0)
    for number in range(64):
        calibration.add(ended(lengths[number % 2], (100, 10)[number % 2]))
    short, long = (ended(one, 0) for one in lengths)
    assert (calibration.factor(short, ()), calibration.factor(long, ())) == (10.0, 0.1)


def test_rows_that_run_on_count_with_what_they_have_made() -> None:
    calibration = Calibration()
    assert calibration.factor(ended(10.0, 0), [ended(10.0, 100) for _ in range(20)]) == 10.0
    assert calibration.factor(ended(10.0, 0), [ended(10.0, 2) for _ in range(20)]) == 1.0, "they may grow"


def test_few_answers_change_nothing_and_only_the_latest_count() -> None:
    calibration = Calibration()
    for _ in range(Calibration.FEWEST - 1):
        calibration.add(ended(10.0, 100))
    assert calibration.factor(ended(10.0, 0), ()) == 1.0
    for _ in range(Calibration.WINDOW):
        calibration.add(ended(10.0, 20))
    assert calibration.factor(ended(10.0, 0), ()) == 2.0


def test_a_prediction_beyond_what_an_answer_may_become_counts_as_that() -> None:
    calibration = Calibration()
    for _ in range(20):
        calibration.add(ended(9999.0, 500))
    assert calibration.factor(ended(9999.0, 0), ()) == 0.5
