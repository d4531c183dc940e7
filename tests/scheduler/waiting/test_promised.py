"""Whose turn it is in a line that lets cheap requests pass: by hand, and its bound under endless short arrivals."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.batching.batcher import Limits
from scheduler.batching.continuous import ContinuousBatcher
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear
from scheduler.waiting.aged import Aging
from scheduler.waiting.prices import Prices, device_prices
from scheduler.waiting.promised import ONE_IN, Promise, PromisedQueue
from scheduler.worker import Worker
from tests.scheduler.fakes import kit, request, worker

TOKENS = Prices(prompt=0.0, entry=0.0, token=1.0, cell=0.0)
"""A request's work is what it is predicted to generate."""

CELLS = Prices(prompt=0.0, entry=0.0, token=1.0, cell=0.001)


AGING = Aging(seconds_per_token=1.0)


def asked(
    row_id: int, predicted: float, *, length: int = 4, priority: int = 0, deadline: float | None = None
) -> Request:
    one = request(row_id, length, arrival=float(row_id), priority=priority)
    one.predicted_length, one.deadline = predicted, deadline
    return one


def line(*requests: Request, work: Prices = TOKENS, share: float = 1.0) -> PromisedQueue:
    queue = PromisedQueue(work, Promise(share), AGING)
    for one in requests:
        queue.add(one)
    return queue


def first(queue: PromisedQueue, count: int = 9, now: float = 0.0) -> list[int]:
    return [one.row_id for one in queue.first(worker(), now, count)]


def first_beside(held: Worker, queue: PromisedQueue) -> list[int]:
    return [one.row_id for one in queue.first(held, 0.0, 9)]


def serve(queue: PromisedQueue, row_id: int) -> None:
    queue.serve(next(one for one in queue if one.row_id == row_id))


def test_the_cheapest_is_first_and_equals_keep_the_order_of_arrival() -> None:
    queue = line(asked(0, 5.0), asked(1, 2.0), asked(2, 8.0), asked(3, 5.0))
    assert first(queue) == [1, 0, 3, 2] == [one.row_id for one in queue.ranked(0.0)]
    assert first(queue, 2) == [1, 0]


def test_better_classes_come_first() -> None:
    queue = line(asked(0, 1.0), asked(1, 8.0, priority=-1))
    assert first(queue) == [1]
    assert [one.row_id for one in queue.ranked(0.0)] == [1, 0]


def test_a_request_is_promoted_when_as_much_was_taken_as_waits() -> None:
    """8 wait in row 0 and 2 in each that comes: with 2 in row n waiting, row 0 is promoted once 10 have been taken."""
    queue = line(asked(0, 8.0))
    for row_id in range(1, 6):
        queue.add(asked(row_id, 2.0))
        assert first(queue)[0] == row_id
        serve(queue, row_id)
    queue.add(asked(6, 2.0))
    assert first(queue) == [0]
    assert [one.row_id for one in queue.ranked(0.0)] == [0, 6]
    queue.add(asked(7, 1.0))
    assert first(queue)[0] == 7, "more waits, so it may wait longer"


def test_what_others_would_have_waited_in_line_counts_after_they_are_gone() -> None:
    """Nearly all of the first 6 found 14 waiting or less: that is what all may be made to wait, not 8 as at the end."""
    queue = line(asked(0, 8.0), *(asked(row_id, 2.0) for row_id in range(1, 6)))
    for row_id in range(1, 6):
        serve(queue, row_id)
    for row_id in (6, 7):
        queue.add(asked(row_id, 2.0))
        assert first(queue) == [row_id, 0], "10 have been taken, and 12"
        serve(queue, row_id)
    queue.add(asked(8, 2.0))
    assert first(queue) == [0], "14 have been taken"


def test_promoted_requests_are_served_in_the_order_in_which_they_came() -> None:
    queue = line(asked(0, 8.0), asked(1, 4.0), asked(2, 6.0), share=0.0)
    assert first(queue) == [0, 1, 2] == [one.row_id for one in queue.ranked(0.0)]


def test_requests_that_are_due_come_before_all_others_of_their_class() -> None:
    """6 tokens are 6 seconds, and with twice that left until its deadline a request is due: at 8 and at 7."""
    queue = line(asked(0, 1.0), asked(1, 6.0, deadline=20.0), asked(2, 6.0, deadline=19.0), asked(3, 1.0, priority=1))
    for now, ranked in ((6.9, [0, 1, 2]), (7.0, [2]), (8.0, [2, 1])):
        assert first(queue, now=now) == ranked
    assert [one.row_id for one in queue.ranked(8.0)] == [2, 1, 0, 3]
    serve(queue, 2)
    assert first(queue, now=9.0) == [1]


def test_one_that_was_handed_back_begins_to_wait_anew() -> None:
    """It made way for another, which must not find it first in line."""
    queue = line(asked(0, 4.0), asked(1, 2.0))
    serve(queue, 1)
    paused = asked(2, 3.0)
    paused.runs, paused.generated = 1, 2
    queue.add(paused)
    assert [turn.place for turn in queue._entries.values()] == [0.0, 2.0]


def test_of_equals_the_one_that_needs_least_padding_is_first() -> None:
    """Beside a row of 40 tokens; the last one is too expensive to be an equal."""
    requests = asked(0, 5.0, length=10), asked(1, 5.0, length=38), asked(2, 5.0, length=20), asked(3, 8.0, length=40)
    held = worker(request(9, length=40))
    assert [one.row_id for one in line(*requests, work=CELLS).first(held, 0.0, 9)] == [1, 2, 0, 3]


BY_CELLS = device_prices(Bilinear(0.0, 0.0, 0.0, 0.0, d1=1.0, d2=0.0, d3=0.0, d4=0.0))


def test_a_long_one_waits_while_short_ones_run_unless_it_is_the_only_one_or_is_promoted() -> None:
    held = worker(*(asked(row_id, 1.0) for row_id in range(100, 164)), rows=80)
    long_one, short_one = asked(0, 8.0), asked(1, 1.0)
    queue = line(long_one, short_one, work=BY_CELLS)
    assert first_beside(held, queue) == [1]
    queue.discard(short_one)
    assert first_beside(held, queue) == [0]
    assert first_beside(held, line(long_one, short_one, work=BY_CELLS, share=0.0)) == [0, 1]


def test_two_long_ones_begin_when_the_short_ones_have_ended() -> None:
    queue = line(asked(0, 8.0), asked(1, 8.0), work=BY_CELLS)
    assert first_beside(worker(asked(2, 1.0), asked(3, 1.0)), queue) == []
    assert first_beside(worker(), queue) == [0, 1]


def test_what_waits_in_a_worse_class_makes_nobody_wait() -> None:
    held = worker(asked(2, 1.0), asked(3, 1.0))
    assert first_beside(held, line(asked(0, 8.0), asked(1, 8.0, priority=1), work=BY_CELLS)) == [0]


def test_rows_of_a_worse_class_keep_nobody_out() -> None:
    """They will make room; beside rows of its own class a long one waits."""
    for priority, taken in ((1, True), (0, False)):
        queue = PromisedQueue(BY_CELLS, Promise(), AGING)
        waiting = ContinuousBatcher(kit(Limits(group_tokens=512, prefill_ahead=0)), queue=queue)
        for one in (asked(0, 8.0), asked(1, 8.0)):
            waiting.add(one, 0.0)
        held = worker(asked(2, 1.0, priority=priority), asked(3, 1.0, priority=priority))
        assert (waiting.take(held, 0.0) is not None) is taken


def test_requests_can_leave_at_any_time() -> None:
    requests = [asked(row_id, 1.0 + row_id % 3, priority=row_id % 2) for row_id in range(6)]
    queue = line(*requests)
    assert queue.discard(requests[2]) and not queue.discard(requests[2])
    assert requests[2] not in queue and len(queue) == 5
    for one in requests:
        queue.discard(one)
    assert not queue and list(queue) == []


def after_many_others(count: int = ONE_IN - 1, **promise: float) -> PromisedQueue:
    """A line through which so many cheap requests have gone."""
    queue = PromisedQueue(TOKENS, Promise(**promise), AGING)
    for row_id in range(count):
        queue.add(asked(row_id, 1.0))
        serve(queue, row_id)
    return queue


def taken_before(row_id: int, queue: PromisedQueue) -> float:
    """The work that is served before a request beside which six of 2 tokens wait at any time."""
    taken = 0.0
    for newcomer in range(1000, 2000):
        while len(queue) < 7:
            queue.add(asked(newcomer * 10 + len(queue), 2.0))
        best = queue.first(worker(), 0.0, 1)[0]
        if best.row_id == row_id:
            return taken
        taken += TOKENS.work(best)
        queue.serve(best)
    raise AssertionError("it has no turn")


@pytest.mark.parametrize(("factor", "before"), [(1.0, 20.0), (2.0, 40.0), (3.0, 60.0)])
def test_the_most_expensive_of_many_lets_more_work_pass(factor: float, before: float) -> None:
    queue = after_many_others(share=1.0, outlier_factor=factor)
    queue.add(asked(999, 8.0))
    assert taken_before(999, queue) == before, "8 + 6·2 wait"


def test_nobody_is_an_outlier_before_many_have_come() -> None:
    queue = after_many_others(ONE_IN - 2, share=1.0)
    queue.add(asked(999, 8.0))
    assert taken_before(999, queue) == 20.0


def test_a_prediction_that_comes_late_can_make_an_outlier_of_a_request() -> None:
    queue, late = after_many_others(share=1.0), asked(999, 1.0)
    queue.add(late)
    late.predicted_length = 8.0
    queue.revise(late)
    assert taken_before(999, queue) == 60.0


def test_an_outlier_keeps_its_place_among_the_promoted() -> None:
    """It came second, so that the one before it and those after it do not wait for its sake."""
    queue = after_many_others(share=0.0)
    for row_id, predicted in ((900, 2.0), (901, 8.0), (902, 1.0)):
        queue.add(asked(row_id, predicted))
    assert first(queue) == [900, 901, 902] == [one.row_id for one in queue.ranked(0.0)]


@pytest.mark.parametrize("promise", [(-1.0, 1.0, 1.0), (0.0, 0.9, 1.0), (0.0, 1.0, 0.9)])
def test_a_promise_that_cannot_be_kept_is_refused(promise: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="not be negative"):
        Promise(*promise)


@given(st.integers(0, 2**32), st.floats(0, 3), st.floats(1, 3), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_no_request_waits_longer_than_the_bound(seed: int, share: float, outliers: float, slots: int) -> None:
    """The bound of promised.py, (1 + β·outliers)·B* + w*. Short ones come for ever, as fast as they are taken or
    faster, and up to `slots` are taken together; all the same the long one has its turn."""
    rng = random.Random(seed)
    queue = after_many_others(rng.choice((0, ONE_IN)), share=share, outlier_factor=outliers)
    many = len(queue._works) >= ONE_IN
    for row_id in range(300, 300 + rng.randint(0, 20)):
        queue.add(asked(row_id, 2.0))
    long_one, taken, most, largest = asked(400, 8.0), 0.0, 0.0, 0.0
    queue.add(long_one)
    for row_id in range(401, 5000):
        for _ in range(rng.choice((0, slots, slots, 2 * slots)) if len(queue) < 40 else 0):
            queue.add(asked(row_id * 10 + len(queue), rng.choice((1.0, 2.0, 3.0))))
        most = max(most, sum(TOKENS.work(one) for one in queue))
        plan = queue.first(worker(), 0.0, slots)
        if long_one in plan:
            break
        work = sum(TOKENS.work(one) for one in plan)
        taken, largest = taken + work, max(largest, work)
        for one in plan:
            queue.serve(one)
    assert long_one in queue
    assert taken <= (1 + share * (outliers if many else 1.0)) * most + largest + 1e-6


def test_with_endless_patience_it_has_no_turn() -> None:
    """So that the test above cannot pass by luck."""
    queue = line(asked(0, 8.0), share=1e9)
    for row_id in range(1, 500):
        queue.add(asked(row_id, 2.0))
        serve(queue, row_id)
    queue.add(asked(500, 2.0))
    assert first(queue)[0] == 500


def test_a_request_whose_prediction_changes_keeps_the_place_that_it_was_promised() -> None:
    """As above, row 0 is promoted once 10 have been taken; that it queue out shorter does not make it a newcomer."""
    changing = asked(0, 8.0)
    queue = line(changing)
    for row_id in range(1, 6):
        queue.add(asked(row_id, 2.0))
        serve(queue, row_id)
    changing.predicted_length = 5.0
    queue.revise(changing)
    queue.add(asked(6, 2.0))
    assert first(queue) == [0]
    serve(queue, 0)
    assert first(queue)[0] == 6


def test_a_request_is_where_its_new_prediction_puts_it() -> None:
    changing = asked(0, 8.0)
    queue = line(changing, asked(1, 5.0))
    assert first(queue) == [1, 0]
    changing.predicted_length = 2.0
    queue.revise(changing)
    assert first(queue) == [0, 1]
    serve(queue, 0)
    serve(queue, 1)
    queue.revise(changing)
    assert len(queue) == 0
