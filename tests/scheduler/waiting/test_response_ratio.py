"""Highest response ratio next, by hand."""

from __future__ import annotations

import random

import pytest

from engine.messages import Terms
from scheduler.assembly import QUEUES
from scheduler.batching.batcher import Kit, Limits
from scheduler.batching.memory import MEMORIES
from scheduler.plan import Returns
from scheduler.request import Request
from scheduler.waiting.orders.due import due_at, due_key
from scheduler.waiting.orders.fcfs import Fcfs
from scheduler.waiting.prices import Prices
from scheduler.waiting.queue import Key
from scheduler.waiting.response_ratio import ResponseRatioQueue
from scheduler.waiting.sorted_requests import Ahead
from tests.scheduler.fakes import request
from tests.scheduler.waiting.predicted import AGING, TOKENS, fill, first, predicted, rows, serve


def queue_of(*requests: Request) -> ResponseRatioQueue:
    queue = ResponseRatioQueue(TOKENS.work, AGING)
    fill(queue, *requests)
    return queue


@pytest.mark.parametrize(("now", "ranked"), [(12.0, [0, 1]), (12.6, [1, 0])])
def test_the_longest_wait_for_its_work_is_first(now: float, ranked: list[int]) -> None:
    """10 s of work since 0 s against 2 s since 10 s: 1.2 against 1.0 at 12 s, 1.26 against 1.3 at 12.6 s."""
    queue = queue_of(predicted(0, 10.0, arrival=0.0), predicted(1, 2.0, arrival=10.0))
    assert first(queue, now=now) == ranked == rows(queue.ranked(now))
    assert first(queue, 1, now=now) == ranked[:1]


def test_priority_comes_first_then_what_is_due_then_the_ratio() -> None:
    """6 tokens are 6 seconds, and with twice that left until its deadline a request is due: at 8."""
    waited, due, better = predicted(0, 1.0), predicted(1, 6.0, deadline=20.0), predicted(2, 9.0, priority=-1)
    queue = queue_of(waited, due, better)
    assert first(queue, now=7.9) == [2, 0, 1]
    assert first(queue, now=8.0) == [2, 1, 0]
    assert queue.best_priority == -1


def test_requests_leave_and_are_ranked_anew_by_their_new_prediction() -> None:
    one, other = predicted(0, 8.0, arrival=0.0), predicted(1, 4.0, arrival=0.0)
    queue = queue_of(one, other)
    assert first(queue, now=4.0) == [1, 0]
    one.predicted_length = 2.0
    queue.revise(one)
    assert first(queue, now=4.0) == [0, 1]
    serve(queue, 0)
    queue.revise(one)
    assert rows(queue) == [1] and one not in queue
    assert queue.discard(other) and not queue.discard(other) and len(queue) == 0


def test_what_costs_nothing_is_ranked_too() -> None:
    queue = ResponseRatioQueue(Prices(0.0, 0.0, 0.0, 0.0).work, AGING)
    fill(queue, predicted(0, 5.0), predicted(1, 3.0))
    assert first(queue, now=9.0) == [0, 1]


def test_by_the_prompt_alone() -> None:
    """Prompts of 10 and 2 tokens at 0 and 10 s: the second passes at 12.5 s. What is kept of a prompt is not read."""
    one, other = request(0, length=10, arrival=0.0), request(1, length=4, arrival=10.0)
    other.cached_prompt = 2
    kit = Kit(Fcfs(), MEMORIES["scale"], Limits(100, 1), Terms(), Returns.ROW_END)
    queue = fill(QUEUES["hrrn-prompt"](kit), one, other)
    assert first(queue, now=12.4) == [0, 1] and first(queue, now=12.6) == [1, 0]


def plain_key(one: Request, now: float) -> Key:
    if one.begin_by is not None and due_at(one, AGING) <= now:
        return due_key(one)
    return (one.priority, 1, (one.times.arrival - now) / TOKENS.work(one), one.times.arrival, one.row_id)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_and_goes_order_and_sums_are_those_of_a_plain_list(seed: int) -> None:
    """Few kinds of requests that come together, so that many have equal ratios; more than the array has room for."""
    rng, queue, plain = random.Random(seed), queue_of(), list[Request]()
    for number in range(400):
        if plain and rng.random() < 0.3:
            gone = plain.pop(rng.randrange(len(plain)))
            assert queue.discard(gone)
        else:
            deadline = rng.choice((None, number / 20 + 6.0))
            plain.append(predicted(number, rng.choice((1, 2, 4)), arrival=float(number // 20), deadline=deadline))
            plain[-1].priority = rng.choice((0, 0, 0, 1, -1))
            queue.add(plain[-1])
        if plain and rng.random() < 0.2:
            changed = rng.choice(plain)
            changed.predicted_length = rng.choice((3.0, 8.0, None))
            queue.revise(changed)
        if number % 10:
            continue
        now = number / 20 + rng.choice((0.0, 5.0))
        ranked = sorted(plain, key=lambda one: plain_key(one, now))
        assert list(queue.ranked(now)) == ranked and len(queue) == len(plain)
        for place in range(0, len(ranked), 7):
            known = [one.predicted_length for one in ranked[:place] if one.predicted_length is not None]
            unread = sum(one.input_length for one in ranked[:place])
            assert queue.ahead(ranked[place], now) == Ahead(place, sum(known), place - len(known), unread)
        assert queue.total() == queue.ahead(predicted(number, 1e9, arrival=now, priority=9), now)
