"""Fair sojourn by hand."""

from __future__ import annotations

from scheduler.waiting.orders.fair_sojourn import FairSojourn
from scheduler.waiting.ranked import RankedQueue
from tests.scheduler.waiting.predicted import AGING, fill, first, predicted, serve


def test_of_those_that_came_together_the_shortest_would_end_first() -> None:
    queue = fill(RankedQueue(FairSojourn(), AGING), predicted(0, 9.0), predicted(1, 2.0), predicted(2, 5.0))
    assert first(queue) == [1, 2, 0]


def test_a_late_one_passes_only_what_would_not_have_ended_by_then() -> None:
    """While 9 of work are taken, rows 1 and 2 and that share it and have had 3 each; so a newcomer of 5 ends after the
    one of 6, which has 3 left."""
    queue = fill(RankedQueue(FairSojourn(), AGING), predicted(0, 9.0), predicted(1, 6.0), predicted(2, 20.0))
    serve(queue, 0)
    fill(queue, predicted(3, 5.0))
    assert first(queue) == [1, 3, 2]
    fill(queue, predicted(4, 2.0))
    assert first(queue) == [4, 1, 3, 2]
