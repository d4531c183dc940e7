"""The tail-inflated mean by hand."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from scheduler.length.distribution import LengthDistribution
from scheduler.request import Request
from scheduler.waiting.orders.tail_inflated import TailInflated, inflated_length
from scheduler.waiting.ranked import RankedQueue
from tests.scheduler.waiting.predicted import fill, predicted, rows


def likely(row_id: int, lengths: list[float], weights: list[float], *, generated: int = 0) -> Request:
    one = predicted(row_id, 0.0, arrival=0.0)
    one.distribution = LengthDistribution(np.array(lengths, np.float32), np.array(weights, np.float32))
    one.predicted_length, one.generated = one.distribution.mean, generated
    return one


def test_the_worst_tenth_counts_twice() -> None:
    """8 tokens, in a fifth of all cases 98: 26 + 0.3·98 = 55.4, more than 40 for certain, which is 52."""
    risky, certain = likely(0, [8.0, 98.0], [0.8, 0.2]), likely(1, [40.0], [1.0])
    assert inflated_length(risky) == pytest.approx(26 + 0.3 * 98)
    assert inflated_length(certain) == pytest.approx(1.3 * 40)
    assert rows(fill(RankedQueue(TailInflated()), risky, certain).ranked(0.0)) == [1, 0]


def test_what_was_generated_is_left_out_and_the_rest_is_bounded() -> None:
    one = likely(0, [10.0, 50.0, 500.0], [0.5, 0.25, 0.25], generated=20)
    assert inflated_length(one) == pytest.approx((30 + 480) / 2 + 0.3 * 480)
    assert inflated_length(predicted(1, 7.0)) == pytest.approx(1.3 * 7)


@pytest.mark.parametrize(("later", "ranked"), [(190.0, [1, 0]), (205.0, [0, 1])])
def test_a_wait_makes_up_for_length(later: float, ranked: list[int]) -> None:
    """Half the length is worth ln 2 / ln(1/0.9) times 30 s: 197 s."""
    assert 30 * log(2) / log(1 / 0.9) == pytest.approx(197.4, abs=0.1)
    queue = fill(RankedQueue(TailInflated()), predicted(0, 20.0, arrival=0.0), predicted(1, 10.0, arrival=later))
    assert rows(queue.ranked(later)) == ranked
