"""The flags of `lengthwise serve` that parts of a strategy obey reach those parts."""

from __future__ import annotations

from typing import Any

import pytest

from engine.messages import ExecutorInfo
from scheduler.batching.batcher import Batcher
from scheduler.learner import inline
from scheduler.request import State
from scheduler.serving_time.bilinear import Bilinear
from scheduler.waiting.fair import Fair
from server.cli.config import ServeConfig
from server.composition.scheduling import parts_for
from tests.scheduler.fakes import request, worker

SECOND_A_TOKEN = Bilinear(0, 0, 0, 0, 0, 0, 0, 1.0)
EXECUTOR = ExecutorInfo(0, "cpu", capacity_tokens=1000, max_rows=4, context_length=500)


def batcher(strategy: str, **flags: Any) -> Batcher:
    config = ServeConfig(strategy=strategy, **flags)
    return parts_for(config, [EXECUTOR], SECOND_A_TOKEN, inline).batcher


@pytest.mark.parametrize(
    ("flags", "fair"),
    [
        ({}, False),
        ({"api_key": ("one",)}, False),
        ({"api_key": ("one", "two")}, True),
        ({"api_key": ("one", "two"), "fair": False}, False),
        ({"fair": True}, True),
        ({"api_key": ("one", "two"), "strategy": "magnus"}, False),
        ({"strategy": "fair"}, True),
    ],
)
def test_service_is_shared_out_with_two_keys_or_as_told(flags: dict[str, Any], fair: bool) -> None:
    strategy, flags = flags.get("strategy", "lengthwise"), {k: v for k, v in flags.items() if k != "strategy"}
    waiting = batcher(strategy, **flags).waiting
    assert isinstance(waiting.order, Fair) is fair


def test_a_batch_waits_as_long_as_it_is_told_to_fill_up() -> None:
    for timeout, taken in ((0.0, True), (2.0, False)):
        waiting = batcher("fcfs-dynamic", batch_wait_timeout=timeout, max_batch_size=2)
        waiting.add(request(), 0.0)
        assert (waiting.take(worker(), 1.0) is not None) is taken
        assert waiting.take(worker(), 2.0) is None if taken else waiting.take(worker(), 2.0) is not None


def test_a_share_of_the_work_goes_out_of_turn() -> None:
    """A long request came first, then one like it, and two short ones after these."""
    for share, served in ((0.0, [0, 3]), (0.5, [0, 1])):
        waiting = batcher("lengthwise", out_of_turn=share, prefill_ahead=0)
        long_one, *short = (request(0), request(1, arrival=2.0), request(2, arrival=3.0))
        other = request(3, arrival=1.0)
        long_one.predicted_length = other.predicted_length = 90.0
        waiting.add(other, 0.0)
        waiting.add(long_one, 0.0)
        for one in short:
            one.predicted_length = 1.0
            waiting.add(one, 0.0)
        taken = []
        for _ in served:
            plan = waiting.take(worker(rows=1), 0.0)
            assert plan is not None
            taken += [one.row_id for one in plan.requests]
            plan.requests[0].move(State.ASSIGNED)
        assert taken == served


def test_boost_is_told_its_gamma() -> None:
    """With a large one it is first come, first served."""
    for gamma, first in ((1e-4, 1), (100.0, 0)):
        waiting = batcher("boost", boost_gamma=gamma)
        requests = (request(0), request(1, arrival=1.0))
        requests[0].predicted_length, requests[1].predicted_length = 8.0, 1.0
        for one in requests:
            waiting.add(one, one.times.arrival)
        plan = waiting.take(worker(rows=1), 1.0)
        assert plan is not None and plan.requests[0].row_id == first


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
