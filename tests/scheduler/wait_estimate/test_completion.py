"""Expected ends: calibrated by those that came."""

from __future__ import annotations

import random
from math import exp

import pytest

from engine.sampling.params import SamplingParams
from scheduler.wait_estimate.completion import FEWEST, RECENT, Expected, IntervalCalibration

PARAMS = SamplingParams(max_tokens=100)


def test_estimates_are_taken_as_they_come_until_there_are_scores() -> None:
    calibration = IntervalCalibration()
    for _ in range(FEWEST - 1):
        calibration.add(Expected(0.0, 0, 0.0, 2.0, 1.0), 20.0)
    assert calibration.interval(4.0, 1.0) == pytest.approx((4 * exp(-0.5), 4.0, 4 * exp(0.5)))


def test_an_estimate_from_before_anything_was_known_says_nothing_of_later_ones() -> None:
    """A burst on a new server was expected four times too early: until 256 more had ended, all was expected later, and
    the ends of the intervals were a million times apart."""
    calibration = IntervalCalibration()
    for _ in range(200):
        calibration.add(Expected(0.0, 0, 0.0, 2.0, 0.25, answers=1), 8.0)
    assert calibration.answers == 200 and calibration.spread(0.0) == 0.25
    assert calibration.interval(4.0, 1.0) == pytest.approx((4 * exp(-0.5), 4.0, 4 * exp(0.5)))


def test_a_bias_that_lasts_is_corrected_and_the_interval_covers_nine_in_ten() -> None:
    rng, calibration, inside = random.Random(3), IntervalCalibration(), []
    for number in range(1000):
        point, spread = rng.uniform(1, 50), rng.uniform(0.3, 2.0)
        seconds = 2 * point * exp(rng.gauss(0, 0.5) * spread)
        low, median, high = calibration.interval(point, spread)
        if number >= RECENT:
            inside.append(low <= seconds <= high)
        calibration.add(Expected(0.0, 0, 0.0, point, spread), seconds)
    assert 0.87 <= sum(inside) / len(inside) <= 0.93
    assert len(calibration._latest) == RECENT and median / point == pytest.approx(2.0, rel=0.25)


def test_intervals_of_uncertain_lengths_do_not_grow_with_errors_where_the_length_is_known() -> None:
    """One that was known to a token and took ten times as long had a score of 9, and made ends of ten hours possible
    where lengths are uncertain by ten."""
    rng, calibration, inside = random.Random(5), IntervalCalibration(), []
    for number in range(800):
        lengths = (0.0, 2.5)[number % 2]
        spread, seconds = calibration.spread(lengths), exp(rng.gauss(0, 1) + rng.gauss(0, lengths / 3.3))
        low, _, high = calibration.interval(1.0, spread)
        if number >= RECENT:
            inside.append(low <= seconds <= high)
            assert high / low < 10_000
        calibration.add(Expected(0.0, 0, 0.0, 1.0, spread), seconds)
    assert 0.85 <= sum(inside) / len(inside) <= 0.95
