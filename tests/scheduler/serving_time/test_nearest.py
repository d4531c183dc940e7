"""Nearest-neighbour serving times: the regression by hand, and who speaks before there is anything to go by."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.nearest import BatchTime, Nearest, estimated_batches

FALLBACK = Bilinear(0, 0, 0, 0, 0, 0, 0, 1)  # a second an iteration


def test_the_fallback_speaks_until_there_are_as_many_batches_as_neighbours() -> None:
    batches = [BatchTime(1, 10, 7, 100.0), BatchTime(1, 10, 9, 200.0)]
    nearest = Nearest(FALLBACK, neighbours=2)
    said = [nearest.estimate(1, 10, 7)]
    for known in (1, 2, 0):
        nearest.fit(batches[:known])
        said.append(nearest.estimate(1, 10, 7))
    assert said == [7.0, 7.0, 100.0, 7.0]


def test_nearer_batches_weigh_more_by_the_inverse_of_their_distance() -> None:
    nearest = Nearest(FALLBACK, neighbours=2)
    nearest.fit([BatchTime(1, 10, 10, 10.0), BatchTime(1, 10, 20, 40.0), BatchTime(1, 10, 100, 500.0)])
    # 2 tokens from the first and 8 from the second: weights 4/5 and 1/5.
    assert nearest.estimate(1, 10, 12) == pytest.approx(0.8 * 10 + 0.2 * 40)


def test_each_feature_counts_in_its_own_spread() -> None:
    """In tokens the second batch is nearer; in spreads, one row against hundreds of tokens, the first is."""
    nearest = Nearest(FALLBACK, neighbours=1)
    nearest.fit([BatchTime(2, 1000, 1, 1.0), BatchTime(1, 100, 1, 2.0), BatchTime(1, 2000, 1, 3.0)])
    assert nearest.estimate(2, 500, 1) == 1.0


def test_many_at_once_are_what_each_is_alone() -> None:
    lessons = estimated_batches(Bilinear(1e-4, 0, 0, 0.1, 0, 1e-3, 0, 0.03), (1, 8, 32), (16, 256), (1, 128, 512))
    nearest = Nearest(FALLBACK)
    nearest.fit(lessons)
    batches = [(1, 20, 5), (30, 200, 400), (8, 256, 128)]
    together = nearest.estimate_all(np.array(batches, dtype=np.float64))
    assert together.tolist() == pytest.approx([nearest.estimate(*batch) for batch in batches])


def test_first_lessons_are_the_estimators_own_words() -> None:
    lessons = estimated_batches(FALLBACK, (1, 2), (10,), (3, 4))
    assert lessons == (
        BatchTime(1, 10, 3, 3.0),
        BatchTime(1, 10, 4, 4.0),
        BatchTime(2, 10, 3, 3.0),
        BatchTime(2, 10, 4, 4.0),
    )
    nearest = Nearest(FALLBACK, neighbours=4)
    nearest.fit(lessons)
    assert nearest.estimate(2, 10, 4) == 4.0
