"""Predicted ranks and promotions by hand, with iterations of one second."""

from __future__ import annotations

from scheduler.waiting.orders.rank import ByRank
from scheduler.waiting.ranked import RankedQueue
from tests.scheduler.waiting.predicted import AGING, fill, first, predicted

ORDER = ByRank(AGING)


def test_the_least_rank_is_first_whatever_has_been_generated() -> None:
    begun, new = predicted(0, 50.0), predicted(1, 40.0)
    begun.generated = 30  # 20 are left, which the shortest remainder would take first
    unknown = predicted(2, 1.0)
    unknown.predicted_length = None
    assert first(fill(RankedQueue(ORDER), begun, new, unknown), now=3.0) == [1, 0, 2]


def test_what_has_been_idle_for_two_hundred_steps_goes_before_all_others_by_its_rank() -> None:
    queue = fill(RankedQueue(ORDER), predicted(0, 90.0), predicted(1, 80.0), predicted(2, 5.0, arrival=150.0))
    assert first(queue, now=199.0) == [2, 1, 0]
    assert first(queue, now=200.0) == [0, 2, 1]
    assert first(queue, now=201.0) == [1, 0, 2]


def test_a_promotion_ends_once_the_request_is_given_to_an_executor() -> None:
    starved, short = predicted(0, 90.0, arrival=0.0), predicted(1, 5.0, arrival=190.0)
    assert ORDER.key(starved, 200.0) < ORDER.key(short, 200.0)
    starved.runs = 1
    assert ORDER.key(starved, 200.0) > ORDER.key(short, 200.0)
    assert ORDER.changes_at(starved) == (400.0,) and ORDER.key(starved, 400.0) > ORDER.key(short, 400.0)
    assert ORDER.key(starved, 400.0)[1] == 0
