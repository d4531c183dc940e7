"""The table of estimators, and Magnus's rule of what to learn from."""

import numpy as np

from engine.measure.timing import SliceTiming
from scheduler.assembly import SERVING_TIMES
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.machine import MachineModel
from scheduler.serving_time.nearest import surprises

SECOND_A_TOKEN = Bilinear(0, 0, 0, 0, 0, 0, 0, 1)


def served(seconds: float, *, generation_length: int) -> SliceTiming:
    return SliceTiming(4, 100, generation_length, seconds)


def test_a_batch_is_learnt_when_it_is_wrong_by_two_seconds_and_by_a_fifth() -> None:
    """Estimates are 1 s a token, so 100 tokens say 100 s and 4 say 4 s."""
    wrong = served(126.0, generation_length=100)  # 26 s, 20.6 %
    short = served(6.5, generation_length=4)  # 2.5 s, 38 %
    within_a_fifth = served(124.0, generation_length=100)  # 24 s, 19.4 %
    within_two_seconds = served(6.0, generation_length=4)  # 2 s, 33 %
    faster = served(80.0, generation_length=100)  # -20 s, 25 %
    batches = [wrong, within_a_fifth, short, within_two_seconds, faster]
    assert surprises(batches, SECOND_A_TOKEN) == (wrong, short, faster)


def test_every_estimator_begins_with_what_the_profile_says() -> None:
    batches = np.array([[1.0, 10.0, 7.0], [2.0, 30.0, 9.0]])
    made = {name: make(MachineModel(SECOND_A_TOKEN)) for name, make in SERVING_TIMES.items()}
    assert set(made) == {"bilinear", "nearest"}
    for estimator in made.values():
        assert estimator.estimate(1, 10, 7) == 7.0
        assert estimator.estimate_all(batches).tolist() == [7.0, 9.0]
