"""Requests dealt in turn to executors that serve a queue of their own."""

from dataclasses import replace

import pytest

from engine.messages import Cause
from scheduler.assembly import assemble
from scheduler.batching.batcher import Batcher, BatcherFactory, BatchLimits
from scheduler.batching.continuous import ContinuousBatcher
from scheduler.batching.memory import MEMORIES
from scheduler.batching.round_robin import RoundRobinBatcher
from scheduler.batching.static import StaticBatcher
from scheduler.options import Scheduling
from scheduler.strategy import CLOSED, STRATEGIES
from scheduler.worker import Worker
from tests.scheduler.fakes import filled, kit, requests, rows_of, worker

LIMITS = BatchLimits(group_tokens=1000, prefill_ahead=0, options=Scheduling(max_batch_size=3))


def executors(count: int) -> list[Worker]:
    return [worker(index=index, capacity=5000) for index in range(count)]


def batcher_of(rows: int, *, local: BatcherFactory = StaticBatcher, limits: BatchLimits = LIMITS) -> RoundRobinBatcher:
    parts = kit(limits, memory=MEMORIES["fixed"], terms=CLOSED)
    return filled(RoundRobinBatcher(parts, local=local), requests(*[4] * rows))


def asked(batcher: Batcher, worker: Worker) -> list[int]:
    """The rows that an executor is given, and holds from then on."""
    if plan := batcher.take(worker, 0.0):
        worker.requests.update({one.row_id: one for one in plan.requests})
        worker.plans += 1
    return rows_of(plan)


def met(batcher: RoundRobinBatcher, workers: list[Worker]) -> list[list[int]]:
    return [asked(batcher, worker) for worker in workers]


def test_each_request_goes_to_the_next_executor_from_the_first_on() -> None:
    batcher, workers = batcher_of(8), executors(3)
    assert met(batcher, workers) == [[0], [1], [2]]
    assert met(batcher, workers) == [[], [], []], "they are busy: batches are formed when an executor is free"
    for one in workers:
        one.requests.clear()
    assert met(batcher, workers) == [[3, 6], [4, 7], [5]]
    assert not batcher.waiting


def test_no_request_moves_to_an_executor_that_has_less_to_do() -> None:
    batcher, workers = batcher_of(6), executors(2)
    met(batcher, workers)
    met(batcher, workers)
    workers[1].requests.clear()
    assert met(batcher, workers) == [[], [3, 5]]
    workers[1].requests.clear()
    assert met(batcher, workers) == [[], []]
    assert [one.row_id for one in batcher.waiting] == [2, 4]


def test_what_waited_for_an_executor_that_died_is_dealt_to_the_others() -> None:
    batcher, workers = batcher_of(6), executors(3)
    met(batcher, workers)
    met(batcher, workers)
    workers[0].lost = True
    for one in workers[1:]:
        one.requests.clear()
    assert met(batcher, workers[1:]) == [[3, 4], [5]]
    assert not batcher.waiting


def test_slices_are_sent_again_in_turn() -> None:
    batcher, workers = batcher_of(2), executors(2)
    met(batcher, workers)
    back = list(workers[1].requests.values())
    workers[1].requests.clear()
    batcher.hand_back(back, Cause.SLICE, 1.0)
    assert met(batcher, workers) == [[], []], "it is the busy one's turn"
    workers[0].requests.clear()
    assert met(batcher, workers) == [[1], []]


@pytest.mark.parametrize("dealt", [True, False])
def test_a_discarded_request_is_not_given(dealt: bool) -> None:
    batcher, (worker,) = batcher_of(3), executors(1)
    given, kept, gone = batcher.waiting
    assert asked(batcher, worker) == [given.row_id]
    if dealt:
        assert asked(batcher, worker) == []
    assert batcher.discard(gone) and not batcher.discard(gone) and not batcher.discard(given)
    worker.requests.clear()
    assert asked(batcher, worker) == [kept.row_id] and not batcher.waiting


def test_executors_wait_for_their_batches_to_fill_up_as_they_would_alone() -> None:
    options = Scheduling(max_batch_size=2, batch_wait_timeout=3.0)
    batcher, (worker,) = batcher_of(1, limits=replace(LIMITS, options=options)), executors(1)
    assert batcher.wake_at(0.0) is None
    assert asked(batcher, worker) == [] and batcher.wake_at(0.0) == 3.0


def test_rows_join_what_their_own_executor_runs() -> None:
    batcher, workers = batcher_of(4, local=ContinuousBatcher), executors(2)
    assert met(batcher, workers) == [[0], [1]]
    assert met(batcher, workers) == [[2], [3]]


@pytest.mark.parametrize("name", ["sls", "so", "ils"])
def test_the_baselines_deal(name: str) -> None:
    parts = assemble(STRATEGIES[name], LIMITS)
    assert isinstance(parts.batcher, RoundRobinBatcher)
    batcher, workers = filled(parts.batcher, requests(4, 4, 4)), executors(2)[::-1]
    assert [asked(batcher, one) for one in parts.placement(workers)] == [[0], [1]]
