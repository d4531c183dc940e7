"""The flags of `lengthwise serve` that parts of a strategy obey reach those parts."""

from __future__ import annotations

from typing import Any

from engine.messages import ExecutorInfo
from scheduler.batching.batcher import Batcher
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.machine import inline
from server.cli.config import ServeConfig
from server.process.scheduling import parts_for
from tests.scheduler.fakes import request, worker

SECOND_A_TOKEN = Bilinear(0, 0, 0, 0, 0, 0, 0, 1.0)
EXECUTOR = ExecutorInfo(0, "cpu", capacity_tokens=1000, max_rows=4, context_length=500)


def batcher(strategy: str, **flags: Any) -> Batcher:
    config = ServeConfig(strategy=strategy, **flags)
    return parts_for(config, [EXECUTOR], SECOND_A_TOKEN, inline).batcher


def test_a_batch_waits_as_long_as_it_is_told_to_fill_up() -> None:
    for timeout, taken in ((0.0, True), (2.0, False)):
        waiting = batcher("fcfs-dynamic", batch_wait_timeout=timeout, max_batch_size=2)
        waiting.add(request(), 0.0)
        assert (waiting.take(worker(), 1.0) is not None) is taken
        assert waiting.take(worker(), 2.0) is None if taken else waiting.take(worker(), 2.0) is not None


def test_the_cheapest_passes_until_the_overtaking_factor_of_what_waits_was_served() -> None:
    """A long request came first, and two short ones after it."""
    for factor, served in ((0.0, [0]), (100.0, [1, 2])):
        waiting = batcher("lengthwise", overtaking_factor=factor, prefill_ahead=0)
        long_one, *short = (request(0), request(1), request(2))
        long_one.predicted_length = 90.0
        waiting.add(long_one, 0.0)
        for one in short:
            one.predicted_length = 1.0
            waiting.add(one, 0.0)
        plans = [waiting.take(worker(rows=1), 0.0) for _ in served]
        assert [one.row_id for plan in plans if plan is not None for one in plan.requests] == served


def passing_an_outlier(factor: float) -> int:
    """Short requests that are served before one that is more expensive than the 200 before it; one waits at a time."""
    waiting = batcher("lengthwise", overtaking_factor=1.0, outlier_factor=factor, prefill_ahead=0)
    idle = worker(rows=1)
    for row_id in range(200):
        waiting.add(request(row_id, max_tokens=1), 0.0)
        waiting.take(idle, 0.0)
    waiting.add(request(500, max_tokens=8), 0.0)
    for row_id in range(501, 1000):
        waiting.add(request(row_id, max_tokens=1), 0.0)
        plan = waiting.take(idle, 0.0)
        if plan is not None and plan.requests[0].row_id == 500:
            return row_id - 501
    raise AssertionError("it has no turn")


def test_an_outlier_is_passed_by_the_outlier_factor_times_as_many() -> None:
    many = passing_an_outlier(1.0)
    assert many >= 4
    assert 2 * many <= passing_an_outlier(2.0) <= 2 * many + 1


def test_the_shortest_passes_until_others_have_waited_the_aging_factor_times_their_time() -> None:
    """8 tokens are 8 seconds of this machine; the short one comes when they have passed."""
    for factor, first in ((0.5, 0), (2.0, 1)):
        waiting = batcher("ssjf-none", aging_factor=factor)
        long_one, short = request(0), request(1, arrival=8.0)
        long_one.predicted_length, short.predicted_length = 8.0, 1.0
        for one in (long_one, short):
            waiting.add(one, one.times.arrival)
        plan = waiting.take(worker(), 8.0)
        assert plan is not None and [one.row_id for one in plan.requests] == [first]
