"""Expected ends: calibrated by those that came, and first tokens that have a deadline."""

from __future__ import annotations

import random
from math import exp

import pytest

from engine.sampling.params import SamplingParams
from scheduler.assembly import assemble
from scheduler.batching.batcher import Limits
from scheduler.dispatcher import Dispatcher
from scheduler.request import TooLate
from scheduler.strategy import STRATEGIES
from scheduler.wait_estimate.completion import FEWEST, RECENT, Calibration, Expected
from scheduler.waiting.deadlines import due_at
from tests.scheduler.fakes import VirtualClock, port, request, token
from tests.scheduler.waiting.predicted import AGING

PARAMS = SamplingParams(max_tokens=100)


def test_estimates_are_taken_as_they_come_until_there_are_scores() -> None:
    calibration = Calibration()
    for _ in range(FEWEST - 1):
        calibration.add(Expected(0.0, 0, 0.0, 2.0, 1.0), 20.0)
    assert calibration.interval(4.0, 1.0) == pytest.approx((4 * exp(-0.5), 4.0, 4 * exp(0.5)))


def test_an_estimate_from_before_anything_was_known_says_nothing_of_later_ones() -> None:
    """A burst on a new server was expected four times too early: until 256 more had ended, all was expected later, and
    the ends of the intervals were a million times apart."""
    calibration = Calibration()
    for _ in range(200):
        calibration.add(Expected(0.0, 0, 0.0, 2.0, 0.25, answers=1), 8.0)
    assert calibration.answers == 200 and calibration.spread(0.0) == 0.25
    assert calibration.interval(4.0, 1.0) == pytest.approx((4 * exp(-0.5), 4.0, 4 * exp(0.5)))


def test_a_bias_that_lasts_is_corrected_and_the_interval_covers_nine_in_ten() -> None:
    rng, calibration, inside = random.Random(3), Calibration(), []
    for number in range(1000):
        point, spread = rng.uniform(1, 50), rng.uniform(0.3, 2.0)
        seconds = 2 * point * exp(rng.gauss(0, 0.5) * spread)
        low, median, high = calibration.interval(point, spread)
        if number >= RECENT:
            inside.append(low <= seconds <= high)
        calibration.add(Expected(0.0, 0, 0.0, point, spread), seconds)
    assert 0.87 <= sum(inside) / len(inside) <= 0.93
    assert len(calibration._sorted) == RECENT and median / point == pytest.approx(2.0, rel=0.25)


def test_intervals_of_uncertain_lengths_do_not_grow_with_errors_where_the_length_is_known() -> None:
    """One that was known to a token and took ten times as long had a score of 9, and made ends of ten hours possible
    where lengths are uncertain by ten."""
    rng, calibration, inside = random.Random(5), Calibration(), []
    for number in range(800):
        lengths = (0.0, 2.5)[number % 2]
        spread, seconds = calibration.spread(lengths), exp(rng.gauss(0, 1) + rng.gauss(0, lengths / 3.3))
        low, _, high = calibration.interval(1.0, spread)
        if number >= RECENT:
            inside.append(low <= seconds <= high)
            assert high / low < 10_000
        calibration.add(Expected(0.0, 0, 0.0, 1.0, spread), seconds)
    assert 0.85 <= sum(inside) / len(inside) <= 0.95


def test_an_objective_of_the_first_token_or_between_tokens_is_refused_where_it_cannot_be_met() -> None:
    clock, one = VirtualClock(), port(rows=2, capacity=1000)
    dispatcher = Dispatcher(assemble(STRATEGIES["fcfs-continuous"], Limits(100, 0)), [one], clock)
    for _ in range(6):
        dispatcher.submit(range(4), PARAMS, predicted_length=32.0)
    dispatcher.dispatch()
    for _ in range(12):
        clock.time += 1.0
        dispatcher.receive(one.report(token(0, 5), token(1, 5)))
    dispatcher.dispatch()
    with pytest.raises(TooLate):
        dispatcher.submit(range(4), PARAMS, first_token_by=clock.time + 20.0)
    with pytest.raises(TooLate):
        dispatcher.submit(range(4), PARAMS, seconds_per_token=0.5)
    taken = dispatcher.submit(range(4), PARAMS, first_token_by=clock.time + 500.0, seconds_per_token=2.0)
    assert taken.expected is not None and taken.expected.place == 4
    assert len(dispatcher.waiting) == 5


def test_a_request_is_due_once_half_of_the_time_to_its_first_token_has_passed() -> None:
    one = request(arrival=10.0)
    one.first_token_by = 14.0
    assert due_at(one, AGING) == 12.0
    one.deadline = 11.0 + 2 * AGING.seconds(one)
    assert due_at(one, AGING) == 11.0 and one.begin_by == 14.0
