"""Highest response ratio next, by hand."""

from __future__ import annotations

import pytest

from scheduler.assembly import ORDERS
from scheduler.batching.batcher import Limits
from scheduler.request import Request
from scheduler.waiting.orders.response_ratio import ResponseRatio
from scheduler.waiting.prices import device_prices
from scheduler.waiting.ranked import RankedQueue
from tests.scheduler.fakes import request
from tests.scheduler.waiting.predicted import AGING, TOKENS, fill, first, predicted


def queue_of(*requests: Request) -> RankedQueue:
    queue = RankedQueue(ResponseRatio(TOKENS.work), AGING)
    fill(queue, *requests)
    return queue


@pytest.mark.parametrize(("now", "ranked"), [(12.0, [0, 1]), (12.6, [1, 0])])
def test_the_longest_wait_for_its_work_is_first(now: float, ranked: list[int]) -> None:
    """10 s of work since 0 s against 2 s since 10 s: 1.2 against 1.0 at 12 s, 1.26 against 1.3 at 12.6 s."""
    queue = queue_of(predicted(0, 10.0, arrival=0.0), predicted(1, 2.0, arrival=10.0))
    assert first(queue, now=now) == ranked


def test_priority_comes_first_then_what_is_due_then_the_ratio() -> None:
    """6 tokens are 6 seconds, and with twice that left until its deadline a request is due: at 8."""
    waited, due, better = predicted(0, 1.0), predicted(1, 6.0, deadline=20.0), predicted(2, 9.0, priority=-1)
    queue = queue_of(waited, due, better)
    assert first(queue, now=7.9) == [2, 0, 1]
    assert first(queue, now=8.0) == [2, 1, 0]


def test_what_costs_nothing_is_ranked_too() -> None:
    queue = RankedQueue(ResponseRatio(lambda one: 0.0), AGING)
    fill(queue, predicted(0, 5.0), predicted(1, 3.0))
    assert first(queue, now=9.0) == [0, 1]


def test_by_the_prompt_alone() -> None:
    """Prompts of 10 and 2 tokens at 0 and 10 s: the second passes at 12.5 s. What is kept of a prompt is not read."""
    one, other = request(0, length=10, arrival=0.0), request(1, length=4, arrival=10.0)
    other.cached_prompt = 2
    queue = fill(RankedQueue(ORDERS["hrrn-prompt"](Limits(100, 1), device_prices), AGING), one, other)
    assert first(queue, now=12.4) == [0, 1] and first(queue, now=12.6) == [1, 0]
