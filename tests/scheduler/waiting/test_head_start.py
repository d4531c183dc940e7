"""The default's order by hand, and its bound under endless cheap arrivals."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.request import Request
from scheduler.waiting.head_start import HeadStartQueue
from scheduler.waiting.prices import Prices
from tests.scheduler.waiting.predicted import AGING, TOKENS, by_tokens, fill, first, predicted, rows, serve


def queue_of(*requests: Request, halving: float = 1.0) -> HeadStartQueue:
    queue = HeadStartQueue(by_tokens, halving, AGING)
    fill(queue, *requests)
    return queue


def test_in_a_short_queue_the_cheapest_is_first() -> None:
    queue = queue_of(predicted(0, 4.0), predicted(1, 2.0), predicted(2, 8.0), halving=15.0)
    assert first(queue) == [1, 0, 2] == rows(queue.ranked(0.0))
    assert first(queue, 2) == [1, 0]


def test_what_costs_the_mean_or_more_keeps_the_order_of_arrival_however_much_it_costs() -> None:
    """The dearest were put back, and waited for up to a third longer than first come, first served."""
    queue = queue_of(*(predicted(row_id, 2.0) for row_id in range(20)), halving=1000.0)
    fill(queue, *(predicted(row_id, length) for row_id, length in ((20, 90.0), (21, 30.0), (22, 60.0), (23, 1.0))))
    assert first(queue, 24) == [23, *range(23)]


def test_equals_keep_the_order_of_arrival() -> None:
    assert first(queue_of(*(predicted(row_id, 4.0) for row_id in range(5)), halving=15.0)) == [0, 1, 2, 3, 4]


def test_without_a_head_start_it_is_first_come_first_served() -> None:
    queue = queue_of(predicted(0, 8.0), predicted(1, 1.0), halving=0.0)
    serve(queue, 0)
    queue.add(predicted(2, 0.5))
    assert first(queue) == [1, 2]


@pytest.mark.parametrize(("taken", "ranked"), [(10, [99, 0]), (13, [0, 99])])
def test_half_the_work_is_worth_so_many_mean_requests(taken: int, ranked: list[int]) -> None:
    """Row 0 costs 4 and its rival 2; with D = 3 and a mean of nearly 4, the head start is nearly 12 of work."""
    queue = HeadStartQueue(by_tokens, 3.0, AGING)
    for row_id in range(200, 1200):
        fill(queue, predicted(row_id, 4.0))
        serve(queue, row_id)
    fill(queue, predicted(0, 4.0, arrival=2000.0))
    for row_id in range(1, taken + 1):
        fill(queue, predicted(row_id, 1.0, arrival=2000.0))
        serve(queue, row_id)
    fill(queue, predicted(99, 2.0, arrival=2000.0))
    assert first(queue) == ranked


def test_better_priorities_come_first_and_what_is_due_before_its_like() -> None:
    """6 tokens are 6 seconds, and with twice that left until its deadline a request is due: at 8."""
    queue = queue_of(predicted(0, 1.0), predicted(1, 6.0, deadline=20.0), predicted(2, 9.0, priority=-1))
    assert first(queue, now=7.9) == [2, 0, 1]
    assert first(queue, now=8.0) == [2, 1, 0]
    assert queue.best_priority == -1


def test_one_that_was_handed_back_begins_to_wait_anew_and_is_not_counted_again() -> None:
    queue = queue_of(predicted(0, 4.0), predicted(1, 4.0))
    serve(queue, 1)
    paused = predicted(2, 4.0)
    paused.runs, paused.generated = 1, 3
    queue.add(paused)
    assert queue.key(paused, 0.0)[1] == 4.0 - 1.0 * 4.0 * log2(4.0 / 1.0)


def test_a_request_is_where_its_new_prediction_puts_it_at_the_place_that_it_has() -> None:
    changing = predicted(0, 8.0)
    queue = queue_of(changing, predicted(1, 5.0))
    assert first(queue) == [1, 0]
    serve(queue, 1)
    queue.add(predicted(2, 2.0))
    changing.predicted_length = 3.0
    queue.revise(changing)
    assert first(queue) == [0, 2], "it came before 5 of work were taken"
    changing.predicted_length = 32.0
    queue.revise(changing)
    assert first(queue) == [2, 0]
    serve(queue, 0)
    queue.revise(changing)
    assert rows(queue) == [2]


def test_requests_can_leave_at_any_time() -> None:
    requests = [predicted(row_id, 1.0 + row_id % 3, priority=row_id % 2) for row_id in range(6)]
    queue = queue_of(*requests)
    assert queue.discard(requests[2]) and not queue.discard(requests[2])
    assert requests[2] not in queue and len(queue) == 5
    for one in requests:
        queue.discard(one)
    assert not queue and list(queue) == []


def test_work_of_nothing_is_ranked_too() -> None:
    queue = HeadStartQueue(lambda: Prices(0.0, 0.0, 0.0, 0.0), 15.0, AGING)
    fill(queue, predicted(0, 5.0), predicted(1, 3.0))
    assert first(queue) == [0, 1]


def test_a_head_start_below_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        HeadStartQueue(by_tokens, -1.0, AGING)


def taken_before_the_long_one(
    queue: HeadStartQueue, rng: random.Random, slots: int, lengths: Sequence[float] = (1.0, 2.0, 4.0)
) -> tuple[float, float, float]:
    """The work taken before a request of 64 while cheap ones come as fast as they are taken or faster, and up to
    `slots` are taken together; the most work that waited; the most that was taken at once."""
    long_one, taken, most, largest = predicted(400, 64.0), 0.0, 0.0, 0.0
    queue.add(long_one)
    for row_id in range(401, 20_000):
        for _ in range(max(2 - len(queue), rng.choice((0, slots, slots, 2 * slots)) if len(queue) < 40 else 0)):
            queue.add(predicted(row_id * 100 + len(queue), rng.choice(lengths), arrival=float(row_id)))
        most = max(most, sum(TOKENS.work(one) for one in queue))
        plan = list(islice(queue.ranked(0.0), slots))
        if long_one in plan:
            return taken, most, largest
        work = sum(TOKENS.work(one) for one in plan)
        taken, largest = taken + work, max(largest, work)
        for one in plan:
            queue.serve(one)
    raise AssertionError("it has no turn")


@given(st.integers(0, 2**32), st.floats(0, 20), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_no_request_waits_longer_than_the_bound(seed: int, halving: float, slots: int) -> None:
    """B* + H + w*, with a mean between 2 and 2.5: the long request was never put forward, and cheap ones cost 1."""
    queue = HeadStartQueue(by_tokens, halving, AGING)
    for row_id in range(300):  # so that the mean is that of the cheap ones, within a fourth
        fill(queue, predicted(row_id, 2.0))
        serve(queue, row_id)
    taken, most, largest = taken_before_the_long_one(queue, random.Random(seed), slots)
    mean = 2.5
    assert taken <= most + halving * mean * log2(mean) + largest + 1e-6


def test_with_an_endless_head_start_it_has_no_turn() -> None:
    """So that the test above cannot pass by luck."""
    with pytest.raises(AssertionError, match="no turn"):
        taken_before_the_long_one(queue_of(predicted(0, 2.0), halving=1e15), random.Random(0), 1, (1.0,))


@pytest.mark.parametrize(("served", "ranked"), [(0.95, [99, 0]), (1.05, [0, 99])])
def test_newcomers_pass_a_request_only_until_so_much_has_been_taken(served: float, ranked: list[int]) -> None:
    """The cheapest that ever came costs 1: one more of its kind goes first for as long as was told, and no longer."""
    queue = HeadStartQueue(by_tokens, 15.0, AGING)
    for row_id in range(200, 1400):
        fill(queue, predicted(row_id, 1.0 if row_id % 10 == 0 else 4.0))
        serve(queue, row_id)
    request = predicted(0, 8.0, arrival=2000.0)
    fill(queue, request)
    told = queue.passed_for(request)
    assert told == pytest.approx(15 * 3.7 * log2(3.7 / 1), rel=0.01)
    for row_id in range(1400, 1400 + round(told * served / 3.7)):
        fill(queue, predicted(row_id, 3.7, arrival=2000.0))
        serve(queue, row_id)
    fill(queue, predicted(99, 1.0, arrival=3000.0))
    assert first(queue) == ranked
    assert (queue.passed_for(request) == 0.0) is (served > 1)
