"""Classes of predicted work by hand, and their bound under endless cheap arrivals."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.request import Request
from scheduler.waiting.classes import ClassQueue
from tests.scheduler.fakes import worker
from tests.scheduler.waiting.predicted import AGING, TOKENS, fill, first, predicted, serve


def queue_of(*requests: Request, share: float = 1.0) -> ClassQueue:
    queue = ClassQueue(TOKENS, share, AGING)
    fill(queue, *requests)
    return queue


def test_the_cheapest_class_is_first_and_in_it_who_came_first() -> None:
    assert first(queue_of(predicted(0, 7.0), predicted(1, 3.0), predicted(2, 2.0), predicted(3, 4.0))) == [1, 2, 0, 3]


def test_a_request_is_promised_when_as_much_was_taken_as_waits() -> None:
    """8 wait in row 0 and 2 in each that comes: with 2 in row n waiting, row 0 is promised once 10 have been taken."""
    queue = queue_of(predicted(0, 8.0))
    for row_id in range(1, 6):
        queue.add(predicted(row_id, 2.0))
        assert first(queue)[0] == row_id
        serve(queue, row_id)
    queue.add(predicted(6, 2.0))
    assert first(queue) == [0, 6]


@given(st.integers(0, 2**32), st.floats(0, 3), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_no_request_waits_longer_than_the_bound(seed: int, share: float, slots: int) -> None:
    rng = random.Random(seed)
    queue = queue_of(*(predicted(row_id, 2.0) for row_id in range(rng.randint(0, 20))), share=share)
    long_one, taken, most, largest = predicted(400, 8.0), 0.0, 0.0, 0.0
    queue.add(long_one)
    for row_id in range(401, 5000):
        for _ in range(rng.choice((0, slots, slots, 2 * slots)) if len(queue) < 40 else 0):
            queue.add(predicted(row_id * 10 + len(queue), rng.choice((1.0, 2.0, 3.0))))
        most = max(most, sum(TOKENS.work(one) for one in queue))
        plan = queue.first(worker(), 0.0, slots)
        if long_one in plan:
            break
        work = sum(TOKENS.work(one) for one in plan)
        taken, largest = taken + work, max(largest, work)
        for one in plan:
            queue.serve(one)
    assert long_one in queue and taken <= (1 + share) * most + largest + 1e-6


def test_a_share_below_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        queue_of(share=-1.0)
