"""The estimators, of which all begin with what the profile says; Magnus's rule of what to learn from; nearest
neighbours: the regression by hand, and what the profile's word counts."""

from math import e, exp, log

import numpy as np
import pytest

from engine.measure.timing import SliceTiming
from scheduler.assembly import SERVING_TIMES
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.machine import MachineModel
from scheduler.serving_time.nearest import Nearest, surprises

PROFILE = Bilinear(0, 0, 0, 0, 0, 0, 0, 1)  # a second an iteration
STEEP = Bilinear(1e-4, 0, 0, 0.1, 1e-6, 1e-3, 0, 0.03)


def test_a_batch_is_learnt_when_it_is_wrong_by_two_seconds_and_by_a_fifth() -> None:
    """Estimates are 1 s a token, so 100 tokens say 100 s and 4 say 4 s."""
    wrong, short, faster = SliceTiming(4, 100, 100, 126.0), SliceTiming(4, 100, 4, 6.5), SliceTiming(4, 100, 100, 80.0)
    right = SliceTiming(4, 100, 100, 124.0), SliceTiming(4, 100, 4, 6.0)  # 24 s are 19.4 %, and 33 % are 2 s
    assert surprises([wrong, short, *right, faster], PROFILE) == (wrong, short, faster)


@pytest.mark.parametrize("name", ["bilinear", "nearest"])
def test_every_estimator_begins_with_what_the_profile_says(name: str) -> None:
    estimator = SERVING_TIMES[name](MachineModel(PROFILE))
    assert estimator.estimate(1, 10, 7) == 7.0
    assert estimator.estimate_all(np.array([[1.0, 10.0, 7.0], [2.0, 30.0, 9.0]])).tolist() == [7.0, 9.0]


def test_the_profile_speaks_until_there_are_as_many_batches_as_neighbours() -> None:
    batches = [SliceTiming(1, 10, 7, 14.0), SliceTiming(1, 10, 9, 18.0)]
    nearest = Nearest(PROFILE, neighbours=2)
    said = []
    for known in (0, 1, 2, 0):
        nearest.fit(batches[:known])
        said.append(nearest.estimate(1, 10, 7))
    assert said == pytest.approx([7.0, 7.0, 14.0, 7.0], rel=0.01)


def test_neighbours_weigh_by_the_inverse_of_their_distance_and_the_profile_as_one_at_a_distance_of_1() -> None:
    nearest = Nearest(PROFILE, neighbours=2)
    nearest.fit([SliceTiming(1, 10, 10, 20.0), SliceTiming(1, 10, 40, 160.0), SliceTiming(1, 10, 4000, 1.0)])
    # 20 iterations are a factor of 2 from either; they took 2 and 4 times what the profile says of them.
    weight = 1 / log(2)
    assert nearest.estimate(1, 10, 20) == pytest.approx(20 * exp(weight * log(2 * 4) / (2 * weight + 1)))


def test_a_factor_of_any_feature_is_as_far() -> None:
    for near in (SliceTiming(8, 100, 10, 5.0), SliceTiming(4, 200, 10, 5.0), SliceTiming(4, 100, 20, 10.0)):
        nearest = Nearest(PROFILE, neighbours=1)
        nearest.fit([near])
        assert nearest.estimate(4, 100, 10) == pytest.approx(10 * exp(log(0.5) / log(2) / (1 / log(2) + 1)))


def test_what_was_never_seen_is_as_the_profile_says() -> None:
    """A regression of the times themselves was 20 % off all over the range that it was made of."""
    nearest = Nearest(STEEP, neighbours=1)
    nearest.fit([SliceTiming(1, 1, 1, STEEP.estimate(1, 1, 1))])
    for batch in ((1, 20, 5), (30, 200, 400), (256, 1024, 1000)):
        assert nearest.estimate(*batch) == pytest.approx(STEEP.estimate(*batch))


def test_a_surprise_tells_of_batches_many_times_as_large() -> None:
    nearest = Nearest(STEEP)
    nearest.fit([SliceTiming(rows, 100, 50, 1.5 * STEEP.estimate(rows, 100, 50)) for rows in range(1, 9)])
    assert nearest.estimate(8, 100, 400) > 1.3 * STEEP.estimate(8, 100, 400)
    far = nearest.estimate(8, 100, round(50 * e**4)) / STEEP.estimate(8, 100, round(50 * e**4))
    assert 1.2 < far < nearest.estimate(8, 100, 400) / STEEP.estimate(8, 100, 400), "the farther, the less"


def test_many_at_once_are_what_each_is_alone() -> None:
    nearest = Nearest(STEEP)
    nearest.fit([SliceTiming(rows, 16 * rows, 128, 3.0 * rows) for rows in (1, 2, 4, 8, 16, 32)])
    batches = [(1, 20, 5), (30, 200, 400), (8, 256, 128)]
    together = nearest.estimate_all(np.array(batches, dtype=np.float64))
    assert together.tolist() == pytest.approx([nearest.estimate(*batch) for batch in batches])
