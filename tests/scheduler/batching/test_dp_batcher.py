"""Batches of a slice each, arranged at intervals: what is arranged, in which order it goes out, and when again; and K
and V of rows that are handed back: whose are kept, and what that changes for those who decide."""

from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from engine.messages import NEVER, Admit, BatchShape, Cause
from engine.simulated.machine import Machine
from loadgen.simulate.simulation import fit_parts, simulate
from loadgen.workload.lengths import RequestLengths
from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.batching.dp import DpBatcher
from scheduler.batching.memory import MEMORIES
from scheduler.options import Scheduling
from scheduler.plan import Assignment, Plan
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.machine import MachineModel
from scheduler.strategy import CLOSED, STRATEGIES
from scheduler.worker import Worker
from tests.scheduler.fakes import Stage, filled, kit, port, request, requests, rows_of, token, worker

MODEL = Bilinear(p1=1e-2, p2=0.0, p3=0.0, p4=0.1, d1=1e-3, d2=1e-3, d3=0.0, d4=0.1, c1=2e-3, c0=0.05)
"""So that a prompt of 100 tokens is not padded to, and few others are worth a batch of their own."""

LIMITS = BatchLimits(group_tokens=100, prefill_ahead=0, options=Scheduling(slice_length=10, min_interval=2.0))


def batcher_of(*waiting: Request, capped: bool = False, adaptive: bool = False, **changed: Any) -> DpBatcher:
    """Under other `options` if they are `changed`."""
    limits = replace(LIMITS, options=replace(LIMITS.options, **changed))
    terms = replace(CLOSED, iterations=limits.options.slice_length)
    parts = replace(kit(limits, memory=MEMORIES["slice"], terms=terms), machine=MachineModel(MODEL))
    return filled(DpBatcher(parts, capped=capped, adaptive=adaptive), waiting)


def executor(index: int = 0, *, load: float = 0.0, capacity: int = 10_000, rows: int = 64) -> Worker:
    """One that has `load` seconds of work before it."""
    held = [request(1000 + index)] if load else []
    executor = worker(*held, index=index, capacity=capacity, rows=rows)
    for one in held:
        executor.assignments[one.row_id] = Assignment(Plan((one,), estimate=load), index, 0.0)
    return executor


def drained(batcher: DpBatcher, *workers: Worker, now: float = 0.0) -> list[list[int]]:
    """The rows of the plans that are handed out now, as a dispatcher asks for them."""
    plans: list[list[int]] = []
    while any(handed := [rows_of(batcher.take(worker, now)) for worker in workers]):
        plans += filter(None, handed)
    return plans


def test_all_that_waits_is_parted_by_length_and_handed_out_longest_first() -> None:
    batcher = batcher_of(*requests(100, 4, 98, 5))
    assert drained(batcher, executor()) == [[2, 0], [1, 3]]
    assert not batcher.waiting


SIZES = [
    ({}, executor(capacity=4 * 14), [4]),
    ({}, executor(capacity=4 * 14 - 1), [3, 1]),
    ({}, executor(rows=2), [2, 2]),
    ({"capped": True, "max_batch_size": 2}, executor(), [2, 2]),
    ({"max_batch_size": 2}, executor(), [4]),  # only some have a fixed size
]


@pytest.mark.parametrize(("kind", "worker", "sizes"), SIZES)
def test_batches_are_as_large_as_memory_and_slots_allow(kind: dict[str, Any], worker: Worker, sizes: list[int]) -> None:
    """14 tokens a row at the end of the slice."""
    assert [len(rows) for rows in drained(batcher_of(*requests(4, 4, 4, 4), **kind), worker)] == sizes


def test_a_smaller_executor_is_given_smaller_batches() -> None:
    """It was not known when the batches were arranged, or has lost memory since."""
    large, small, shrunk = executor(0), executor(1, capacity=2 * 14), executor(0)
    assert drained(batcher_of(*requests(4, 4, 4, 4)), large, small) == [[0, 1, 2, 3]]
    batcher = batcher_of(*requests(*[4] * 4, *[100] * 4))
    assert [rows_of(batcher.take(one, 0.0)) for one in (large, small, small)] == [[4, 5, 6, 7], [2, 3], [0, 1]]
    shrunk.shape = BatchShape(capacity_tokens=14)
    assert drained(batcher_of(*requests(4, 4)), shrunk) == [[1], [0]]


# Slices


def test_rows_that_come_back_are_arranged_with_the_new_ones_by_what_they_have_become() -> None:
    batcher = batcher_of(request(1, length=11))
    batcher.hand_back([request(0, length=4, generated=10)], Cause.SLICE, 0.0)
    assert drained(batcher, executor()) == [[1, 0]]


@pytest.mark.parametrize(("gone", "left"), [([3, 2], [[4]]), ([2, 3, 4], [])])
def test_what_is_discarded_once_arranged_is_left_out(gone: list[int], left: list[list[int]]) -> None:
    made = requests(100, 100, 4, 4, 4)
    batcher = batcher_of(*made)
    assert batcher.take(executor(), 0.0) is not None
    assert list(batcher.waiting) == made[2:]
    assert all(batcher.discard(made[row]) and not batcher.discard(made[row]) for row in gone)
    assert not batcher.discard(made[0])
    assert drained(batcher, executor()) == left


# Intervals


def test_what_arrives_between_two_arrangements_waits() -> None:
    batcher, busy = batcher_of(request(0)), executor(load=9.0)
    assert batcher.wake_at(0.0) is not None and drained(batcher, busy) == [[0]]
    assert batcher.wake_at(0.0) is None
    batcher.add(request(1), 0.5)
    batcher.add(request(2), 1.0)
    assert (batcher.wake_at(1.0), drained(batcher, busy, now=1.9)) == (2.0, [])
    assert drained(batcher, busy, now=2.0) == [[1, 2]]


def test_nothing_waits_while_every_executor_rests() -> None:
    batcher, busy, idle = batcher_of(request(0)), executor(0, load=9.0), executor(1)
    drained(batcher, busy, idle)
    batcher.add(request(1), 0.5)
    assert drained(batcher, busy, idle, now=0.5) == []
    rested = executor(0)
    assert drained(batcher, rested, idle, now=0.6) == [[1]]


INTERVALS = [
    ([9.0, 6.0], True, 3.0),  # half of the lesser
    ([9.0, 3.0], True, 2.0),  # not less than the shortest
    ([9.0, 6.0], False, 2.0),
]


@pytest.mark.parametrize(("loads", "adaptive", "due"), INTERVALS)
def test_the_interval_is_a_part_of_the_least_load_in_bounds(loads: list[float], adaptive: bool, due: float) -> None:
    batcher = batcher_of(request(0), adaptive=adaptive)
    drained(batcher, *(executor(index, load=load) for index, load in enumerate(loads)))
    batcher.add(request(1), 0.1)
    assert batcher.wake_at(0.1) == pytest.approx(due)


def test_the_loads_that_count_are_those_right_after_the_arrangement_of_executors_that_ask() -> None:
    batcher = batcher_of(request(0), adaptive=True)
    drained(batcher, executor(load=8.0), executor(1, load=20.0))
    batcher.add(request(1), 1.0)
    assert drained(batcher, executor(load=5.0), now=1.0) == []
    assert batcher.wake_at(1.0) == pytest.approx(4.0)
    assert drained(batcher, executor(1, load=20.0), now=4.0) == [[1]], "the other is gone"
    batcher.add(request(2), 5.0)
    assert batcher.wake_at(5.0) == pytest.approx(14.0)


def test_without_a_given_interval_it_is_the_median_slice() -> None:
    batcher = batcher_of(*requests(100, 50, 4), min_interval=None)
    assert drained(batcher, executor(load=9.0, rows=1)) == [[0], [1], [2]]
    batcher.add(request(3), 0.0)
    assert batcher.wake_at(0.0) == pytest.approx(MODEL.serve(1.0, 50.0, 10.0))


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=30),
    capacities=st.lists(st.integers(70, 400), min_size=1, max_size=3),
)
def test_each_request_goes_out_once_and_no_batch_outgrows_its_place(lengths: list[int], capacities: list[int]) -> None:
    batcher, handed = batcher_of(*requests(*lengths)), list[int]()
    workers = cycle([executor(index, capacity=capacity) for index, capacity in enumerate(capacities)])
    while rows := rows_of(batcher.take(worker := next(workers), 0.0)):
        assert len(rows) * (max(lengths[row] for row in rows) + 10) <= worker.capacity_tokens
        handed += rows
    assert sorted(handed) == list(range(len(lengths))) and not batcher.waiting


# Strategies


KEPT = [
    (False, MODEL, 7),  # 2e-3·L + 0.05 <= 1e-2·L from 6.25 on
    (False, replace(MODEL, c1=0.0, c0=0.0), 0),
    (True, MODEL, NEVER),
    (True, replace(MODEL, c1=0.0, c0=0.0), NEVER),
]


@pytest.mark.parametrize(("recompute", "model", "kept_from"), KEPT)
def test_k_and_v_are_kept_where_that_takes_less_and_may(recompute: bool, model: Bilinear, kept_from: int) -> None:
    parts = assemble(STRATEGIES["scls"], replace(LIMITS, options=replace(LIMITS.options, recompute=recompute)), model)
    parts.batcher.add(request(), 0.0)
    plan = parts.batcher.take(executor(), 0.0)
    assert plan is not None and plan.terms == replace(CLOSED, iterations=10, kept_from=kept_from)


OF_4 = BatchLimits(group_tokens=100, prefill_ahead=0, options=Scheduling(slice_length=4, min_interval=0.0))
KEEPING = Bilinear(p1=0.5, p2=0.25, p3=0.0, p4=8.0, d1=0.0, d2=0.0, d3=0.0, d4=1.0, c1=0.25, c0=3.0)
"""So that 11 tokens are worth keeping: 0.25·11 + 3 = 0.5·11 + 0.25."""


class Trio(Stage):
    """A dispatcher with two executors, of which one was sent two requests of 4 tokens and one of 2."""

    def __init__(self, strategy: str = "scls") -> None:
        super().__init__(port(0, capacity=5000), port(1, capacity=5000), strategy=strategy, limits=OF_4, prices=KEEPING)
        self.requests = [self.submit(length, most=50) for length in (4, 4, 2)]
        self.dispatcher.dispatch()
        self.report(*(token(one.row_id, *range(5)) for one in self.requests))

    def hand_back_all(self, cause: Cause, *dropped: int) -> None:
        self.hand_back(cause, *(one.row_id for one in self.requests), dropped=dropped)


def needing_prefill(requests: list[Request]) -> list[int]:
    return [one.row_id for one in requests if one.needs_prefill]


@pytest.mark.parametrize("cause", [Cause.SLICE, Cause.PAUSE])
def test_rows_without_k_and_v_are_read_again_once(cause: Cause) -> None:
    stage = Trio()
    assert needing_prefill(stage.requests) == []
    stage.hand_back_all(cause, 2)
    assert needing_prefill(stage.requests) == [2]
    stage.dispatcher.dispatch()
    assert needing_prefill(stage.requests) == [], "that is up to the executor now"
    stage.hand_back_all(cause)
    assert needing_prefill(stage.requests) == []


STARTS = [
    ((), 3 * 3 + 0.25 * (9 + 9 + 7)),
    ((2,), 2 * 3 + 0.25 * (9 + 9) + KEEPING.prefill(1, 7)),
    ((0, 1, 2), KEEPING.prefill(3, 9)),
]


@pytest.mark.parametrize(("dropped", "start"), STARTS)
def test_the_next_slice_is_estimated_by_what_was_kept(dropped: tuple[int, ...], start: float) -> None:
    """Two rows of 9 tokens, one of 7, and 4 iterations."""
    stage = Trio()
    stage.hand_back_all(Cause.SLICE, *dropped)
    stage.dispatcher.dispatch()
    assert [worker.load for worker in stage.dispatcher.workers] == [pytest.approx(start + 4.0), 0.0]


def test_an_executor_is_told_which_rows_are_worth_keeping() -> None:
    for name in ("scls", "so", "lengthwise", "baton-pd", "magnus"):
        told = {order.terms.kept_from for order in Trio(name).ports[0].take() if isinstance(order, Admit)}
        assert told == {11}


def served(recompute: bool, model: Bilinear) -> tuple[float, int]:
    """Seconds that two requests take in slices of 4, and how many tokens are read."""
    machine = Machine(model, capacity_tokens=1000, max_num_seqs=4, context_length=500)
    limits = replace(OF_4, options=replace(OF_4.options, recompute=recompute))
    trace = [RequestLengths(0.0, 2, 9), RequestLengths(0.0, 2, 13)]
    done = simulate(fit_parts(STRATEGIES["scls"], limits, machine, model), machine, trace, 50)
    return done.duration, sum(worker.tally.prompt for worker in done.workers)


def test_what_is_kept_and_what_is_read_again_by_hand() -> None:
    """Both have 7 tokens after the first slice, too few, and are read again, which makes a token of the next slice: so
    one ends with the 9th token there, at 4 + 1 + 4 iterations. The other has 12 tokens then, which are kept, unless
    nobody wants copies. Where they cost nothing all are made, and slices end with 5, 9 and 13 tokens of the answers."""
    first, second = KEEPING.prefill(2, 2) + 4, KEEPING.prefill(2, 7) + 4
    assert served(False, KEEPING) == pytest.approx((first + second + KEEPING.copy(11) + 3, 2 * 2 + 2 * 7))
    assert served(False, replace(KEEPING, c1=0.0, c0=0.0)) == pytest.approx((KEEPING.prefill(2, 2) + 12, 2 * 2))
    assert served(True, KEEPING) == pytest.approx((first + second + KEEPING.prefill(1, 12) + 2, 2 * 2 + 2 * 7 + 12))
