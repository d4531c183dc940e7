"""Which batch goes first."""

from __future__ import annotations

import numpy as np

from scheduler.serving_time.bilinear import FloatArray
from scheduler.waiting.hrrn import hrrn, oldest_first

WAITED = np.array([10.0, 6.0, 1.0])


def never() -> FloatArray:
    raise AssertionError("nobody needs an estimate")


def test_first_come_first_served_asks_for_no_estimate() -> None:
    assert oldest_first(WAITED, never).argmax() == 0


def test_the_highest_response_ratio_weighs_waiting_against_serving() -> None:
    """10 / 40, 6 / 5 and 1 / 0.5."""
    ratios = hrrn(WAITED, lambda: np.array([40.0, 5.0, 0.5]))
    assert ratios.tolist() == [0.25, 1.2, 2.0]


def test_a_batch_that_takes_long_goes_once_it_has_waited_long() -> None:
    assert hrrn(np.array([400.0, 6.0]), lambda: np.array([40.0, 1.0])).argmax() == 0


def test_an_estimate_of_nothing_divides_nothing() -> None:
    assert np.isfinite(hrrn(WAITED, lambda: np.zeros(3))).all()
