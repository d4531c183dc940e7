"""Batches that nobody joins: how large, when, and how their answers return; and requests dealt in turn to executors
that serve a queue of their own."""

from dataclasses import replace

import pytest

from engine.messages import Cause, ExecutorDied, FinishReason, RowUpdate
from scheduler.assembly import assemble
from scheduler.batching.batcher import Batcher, BatcherFactory, BatchLimits
from scheduler.batching.continuous import ContinuousBatcher
from scheduler.batching.memory import MEMORIES
from scheduler.batching.round_robin import RoundRobinBatcher
from scheduler.batching.static import StaticBatcher
from scheduler.options import Scheduling
from scheduler.request import Request, State
from scheduler.strategy import CLOSED, STRATEGIES
from scheduler.worker import Worker
from tests.scheduler.fakes import Stage, cancelled, filled, kit, port, request, requests, rows_of, token, worker

LIMITS = BatchLimits(group_tokens=100, prefill_ahead=2, options=Scheduling(max_batch_size=3))
PATIENT = BatchLimits(group_tokens=100, prefill_ahead=2, options=Scheduling(max_batch_size=3, batch_wait_timeout=2.0))


def batcher_of(limits: BatchLimits, *arrivals: float) -> StaticBatcher:
    waiting = (request(row_id, arrival=arrival) for row_id, arrival in enumerate(arrivals))
    return filled(StaticBatcher(kit(limits, memory=MEMORIES["fixed"], terms=CLOSED)), waiting)


def taken(batcher: StaticBatcher, now: float, *held: Request, capacity: int = 5000) -> list[int]:
    return rows_of(batcher.take(worker(*held, capacity=capacity), now))


def test_an_idle_executor_takes_what_there_is_up_to_the_batch_size() -> None:
    batcher = batcher_of(LIMITS, *[0.0] * 5)
    assert taken(batcher, 0.0, request(100)) == []
    assert [taken(batcher, 0.0), taken(batcher, 0.0), taken(batcher, 0.0)] == [[0, 1, 2], [3, 4], []]


def test_a_batch_is_as_large_as_its_rows_could_grow_at_most() -> None:
    """500 tokens of context a row: two of them fit 1,400."""
    assert taken(batcher_of(LIMITS, *[0.0] * 3), 0.0, capacity=1400) == [0, 1]


def test_a_batch_waits_until_it_is_full_or_its_oldest_request_has_waited_long_enough() -> None:
    batcher = batcher_of(PATIENT, 1.0, 2.5)
    assert (batcher.wake_at(2.5), taken(batcher, 2.5)) == (3.0, [])
    assert taken(batcher, 3.0) == [0, 1]
    assert batcher.wake_at(3.0) is None
    assert taken(batcher_of(PATIENT, *[1.0] * 3), 1.0) == [0, 1, 2]


def test_a_batch_that_could_go_but_for_a_busy_executor_wakes_nobody() -> None:
    """It used to ask to be woken at a moment that had passed, again and again until the executor was free."""
    batcher = batcher_of(PATIENT, 1.0, 2.0)
    assert (taken(batcher, 3.5, request(100)), batcher.wake_at(3.5)) == ([], 4.0)
    assert taken(batcher, 4.0, request(100)) == []
    assert batcher.wake_at(4.0) is None and taken(batcher, 9.0) == [0, 1]


class Pair(Stage):
    """A dispatcher with two executors of two slots, of which one was sent two requests as a batch."""

    def __init__(self, strategy: str) -> None:
        ports = (port(index, rows=2, capacity=5000) for index in (0, 1))
        super().__init__(*ports, strategy=strategy, limits=LIMITS)
        self.one, self.other = self.submit(), self.submit()
        assert self.dispatch() == [[0, 1]]


async def answer(request: Request) -> RowUpdate:
    return [update async for update in request.stream][-1]


async def test_answers_that_return_together_come_when_the_last_row_has_ended() -> None:
    stage = Pair("vs")
    stage.report(token(0, 5, text="a"), token(1, 6), now=1.0)
    stage.report(token(0, 7, text="b", end=FinishReason.STOP), token(1, 8), now=2.0)
    assert (stage.one.state, stage.one.times.first_token, stage.one.generated) == (State.RUNNING, None, 2)
    stage.submit()
    assert stage.dispatch() == [] and stage.dispatch(1) == [[2]], "nobody joins"
    stage.report(token(1, 9, end=FinishReason.STOP), now=3.0)
    assert {stage.one.times.end, stage.other.times.end, stage.one.times.first_token} == {3.0}
    assert (await answer(stage.one)).token_ids == (5, 7) and (await answer(stage.other)).token_ids == (6, 8, 9)
    fourth = stage.submit()
    assert stage.dispatch() == [[fourth.row_id]]


async def test_answers_that_return_row_by_row_do_not_wait_for_the_batch() -> None:
    stage = Pair("fcfs-dynamic")
    stage.report(token(0, 5, end=FinishReason.STOP), token(1, 6), now=1.0)
    assert (stage.one.times.end, stage.other.times.first_token) == (1.0, 1.0)


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_client_that_leaves_a_batch_does_not_hold_the_others_up(leaver: int) -> None:
    """Whether its row had ended, or was the last that the others waited for."""
    stage = Pair("vs")
    stage.report(token(0, 5, end=FinishReason.STOP), token(1, 6), now=1.0)
    leaving, staying = [(stage.one, stage.other), (stage.other, stage.one)][leaver]
    stage.dispatcher.cancel(leaving)
    assert cancelled(stage.ports[0].take()) == [leaving.row_id]
    assert leaving.state is State.CANCELLED
    assert staying.state is (State.FINISHED if leaver else State.RUNNING)
    if not leaver:
        stage.report(token(1, 7, end=FinishReason.STOP), now=2.0)
    assert staying.state is State.FINISHED and stage.dispatcher.table.requests_running == 0


async def test_complete_answers_survive_the_death_of_their_executor() -> None:
    stage = Pair("vs")
    stage.report(token(0, 5, end=FinishReason.STOP), token(1, 6), now=1.0)
    stage.dispatcher.receive(ExecutorDied(0, "fire"))
    assert (stage.one.state, stage.other.state) == (State.FINISHED, State.FAILED)


def test_rows_that_a_dying_executor_salvaged_go_on_elsewhere() -> None:
    stage = Pair("fcfs-dynamic")
    stage.report(token(0, 5), token(1, 6))
    stage.ports[0].alive = False
    stage.dispatcher.receive(ExecutorDied(0, "fire", salvaged=(1,)))
    assert (stage.one.state, stage.other.state) == (State.FAILED, State.WAITING)
    assert not stage.other.needs_prefill, "what was in host memory is not read again"
    assert stage.dispatch(1) == [[1]] and stage.other.generated == 1


def test_a_cancelled_request_frees_what_an_executor_keeps_of_it() -> None:
    stage = Pair("fcfs-dynamic")
    stage.report(token(0, 5), now=1.0)
    stage.hand_back(Cause.PAUSE, 0)
    stage.dispatcher.cancel(stage.one)
    assert cancelled(stage.ports[0].take()) == [0]
    assert stage.one.state is State.CANCELLED


DEALT = BatchLimits(group_tokens=1000, prefill_ahead=0, options=Scheduling(max_batch_size=3))


def executors(count: int) -> list[Worker]:
    return [worker(index=index, capacity=5000) for index in range(count)]


def dealing(rows: int, *, local: BatcherFactory = StaticBatcher, limits: BatchLimits = DEALT) -> RoundRobinBatcher:
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
    batcher, workers = dealing(8), executors(3)
    assert met(batcher, workers) == [[0], [1], [2]]
    assert met(batcher, workers) == [[], [], []], "they are busy: batches are formed when an executor is free"
    for one in workers:
        one.requests.clear()
    assert met(batcher, workers) == [[3, 6], [4, 7], [5]]
    assert not batcher.waiting


def test_no_request_moves_to_an_executor_that_has_less_to_do() -> None:
    batcher, workers = dealing(6), executors(2)
    met(batcher, workers)
    met(batcher, workers)
    workers[1].requests.clear()
    assert met(batcher, workers) == [[], [3, 5]]
    workers[1].requests.clear()
    assert met(batcher, workers) == [[], []]
    assert [one.row_id for one in batcher.waiting] == [2, 4]


def test_what_waited_for_an_executor_that_died_is_dealt_to_the_others() -> None:
    batcher, workers = dealing(6), executors(3)
    met(batcher, workers)
    met(batcher, workers)
    workers[0].lost = True
    for one in workers[1:]:
        one.requests.clear()
    assert met(batcher, workers[1:]) == [[3, 4], [5]]
    assert not batcher.waiting


def test_slices_are_sent_again_in_turn() -> None:
    batcher, workers = dealing(2), executors(2)
    met(batcher, workers)
    back = list(workers[1].requests.values())
    workers[1].requests.clear()
    batcher.hand_back(back, Cause.SLICE, 1.0)
    assert met(batcher, workers) == [[], []], "it is the busy one's turn"
    workers[0].requests.clear()
    assert met(batcher, workers) == [[1], []]


@pytest.mark.parametrize("dealt", [True, False])
def test_a_discarded_request_is_not_given(dealt: bool) -> None:
    batcher, (worker,) = dealing(3), executors(1)
    given, kept, gone = batcher.waiting
    assert asked(batcher, worker) == [given.row_id]
    if dealt:
        assert asked(batcher, worker) == []
    assert batcher.discard(gone) and not batcher.discard(gone) and not batcher.discard(given)
    worker.requests.clear()
    assert asked(batcher, worker) == [kept.row_id] and not batcher.waiting


def test_executors_wait_for_their_batches_to_fill_up_as_they_would_alone() -> None:
    options = Scheduling(max_batch_size=2, batch_wait_timeout=3.0)
    batcher, (worker,) = dealing(1, limits=replace(DEALT, options=options)), executors(1)
    assert batcher.wake_at(0.0) is None
    assert asked(batcher, worker) == [] and batcher.wake_at(0.0) == 3.0


def test_rows_join_what_their_own_executor_runs() -> None:
    batcher, workers = dealing(4, local=ContinuousBatcher), executors(2)
    assert (met(batcher, workers), met(batcher, workers)) == ([[0], [1]], [[2], [3]])


@pytest.mark.parametrize("name", ["sls", "so", "ils"])
def test_the_baselines_deal(name: str) -> None:
    parts = assemble(STRATEGIES[name], DEALT)
    assert isinstance(parts.batcher, RoundRobinBatcher)
    batcher, workers = filled(parts.batcher, requests(4, 4, 4)), executors(2)[::-1]
    assert [asked(batcher, one) for one in parts.placement(workers)] == [[0], [1]]
