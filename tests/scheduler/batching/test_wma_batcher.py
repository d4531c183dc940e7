"""Batches arranged on arrival: who joins whom, which batch goes first, and what happens when one is too large."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given, strategies as st

from engine.messages import Cause, Overflow
from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.batching.wma import BatchLengths, WmaBatcher, batch_lengths, expected_lengths, memory_tokens
from scheduler.options import Scheduling
from scheduler.plan import Returns
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import STRATEGIES
from scheduler.worker import Worker
from tests.scheduler.batching.wma_oracle import wma
from tests.scheduler.fakes import filled, request, rows_of, worker

LIMITS = BatchLimits(group_tokens=4096, prefill_ahead=0, capacity_tokens=1000, context_length=500, slots=64)
SECOND_A_TOKEN = Bilinear(0, 0, 0, 0, 0, 0, 0, 1.0)
"""A batch takes a second an iteration."""


def asked(row_id: int, input_length: int = 10, predicted: float | None = 10.0, **others: Any) -> Request:
    return request(row_id, input_length, max_tokens=1024, predicted_length=predicted, **others)


def alike(rows: range) -> list[Request]:
    return [asked(row_id) for row_id in rows]


def batcher_of(
    waiting: Iterable[Request] = (), strategy: str = "magnus", limits: BatchLimits = LIMITS, threshold: int = 50_000
) -> WmaBatcher:
    limits = replace(limits, options=replace(limits.options, wma_threshold=threshold))
    batcher = assemble(STRATEGIES[strategy], limits, SECOND_A_TOKEN).batcher
    assert isinstance(batcher, WmaBatcher)
    return filled(batcher, waiting)


def arranged(batcher: WmaBatcher) -> list[list[int]]:
    return [[request.row_id for request in batch.rows] for batch in batcher._batches]


def idle(capacity: int = 1000, rows: int = 64, context: int = 500) -> Worker:
    return worker(capacity=capacity, rows=rows, context=context)


def taken(batcher: WmaBatcher, now: float = 9.0, most: int = 9) -> list[list[int]]:
    """What one executor after another is given."""
    plans = (rows_of(batcher.take(idle(), now)) for _ in range(most))
    return [*takewhile(bool, plans)]


# Arrangement


def test_a_request_joins_the_batch_that_wastes_least_with_it_in() -> None:
    """(24, 22) beside (20, 20) wastes 20·4 + 44 + 45 + 46 = 215, beside (100, 100) more than the threshold."""
    batcher = batcher_of([asked(0, 100, 100), asked(1, 20, 20)], threshold=5_000)
    assert arranged(batcher) == [[0], [1]]
    assert arranged(filled(batcher, [asked(2, 24, 22), asked(3, 96, 101)])) == [[0, 3], [1, 2]]


@pytest.mark.parametrize(("threshold", "batches"), [(1016, [[0], [1]]), (1017, [[0, 1]])])
def test_a_batch_must_stay_below_the_threshold(threshold: int, batches: list[list[int]]) -> None:
    """(10, 10) beside (30, 26) reads 10·20 cells of padding, and 40 + 41 + .. + 56 = 816 after its end."""
    assert arranged(batcher_of([asked(0, 10, 10), asked(1, 30, 26)], threshold=threshold)) == batches


@pytest.mark.parametrize(("capacity", "batches"), [(119, [[0, 1], [2]]), (120, [[0, 1, 2]])])
def test_a_batch_must_fit_at_its_end(capacity: int, batches: list[list[int]]) -> None:
    """Three rows of 20 + 20 columns."""
    requests = [asked(0, 20, 10), asked(1, 10, 20), asked(2, 20, 20)]
    assert arranged(batcher_of(requests, limits=replace(LIMITS, capacity_tokens=capacity))) == batches


LARGEST = [
    ("abp", LIMITS, 9),
    ("glp", LIMITS, 2),  # ⌊1000 / 500⌋
    ("glp", replace(LIMITS, options=Scheduling(max_batch_size=1)), 1),
    ("abp", replace(LIMITS, options=Scheduling(max_batch_size=5)), 5),
    ("abp", replace(LIMITS, slots=4), 4),
    ("abp", replace(LIMITS, capacity_tokens=None, context_length=None, slots=None), 9),
]


@pytest.mark.parametrize(("strategy", "limits", "largest"), LARGEST)
def test_a_batch_has_no_more_rows_than_it_may(strategy: str, limits: BatchLimits, largest: int) -> None:
    batches = arranged(batcher_of(alike(range(9)), strategy, limits))
    assert max(map(len, batches)) == largest and sorted(sum(batches, [])) == list(range(9))


def test_a_batch_is_of_one_priority_and_the_better_one_goes_first() -> None:
    batcher = batcher_of([asked(0, priority=1), asked(1, priority=0, arrival=5.0), asked(2, priority=1)])
    assert (arranged(batcher), taken(batcher)) == ([[0, 2], [1]], [[1], [0, 2]])


CASE_STUDY = [("vs", [7, 7, 7]), ("glp", [3, 4, 7, 7]), ("abp", [3, 18]), ("magnus", [3, 18])]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("strategy", "sizes"), CASE_STUDY)
def test_the_case_study_comes_out_of_the_papers_own_parameters(strategy: str, sizes: list[int], seed: int) -> None:
    """Figure 6: requests of about 1000 tokens in and out, and of about 10, seven at a time one large among six small.

    The batch size of 7 is that of equation 1 with limits of 1024 each, so there is room for 7 · 2048 tokens at least.
    One executor takes batches after all have arrived.
    """
    rng, lengths = random.Random(seed), list[tuple[int, int]]()
    for number, large in enumerate([(1000, 1000), (1004, 996), (998, 1003)]):
        small = [(8 + place % 5, 8 + place % 4) for place in range(6 * number, 6 * number + 6)]
        lengths += rng.sample([large, *small], 7)
    limits = BatchLimits(4096, 0, capacity_tokens=7 * 2048, context_length=2048, slots=128)
    batcher = assemble(STRATEGIES[strategy], limits, SECOND_A_TOKEN).batcher
    filled(batcher, (asked(row_id, *pair, arrival=row_id / 10) for row_id, pair in enumerate(lengths)))
    plans = [rows_of(batcher.take(idle(7 * 2048, 128, 2048), 3.0)) for _ in lengths]
    assert sorted(len(rows) for rows in plans if rows) == sizes


def plain_choice(batches: Sequence[Sequence[BatchLengths]], request: BatchLengths, limits: BatchLimits) -> int | None:
    """Algorithm 1 word by word: look at every row of every batch."""
    assert limits.capacity_tokens is not None
    best, least = None, float(limits.options.wma_threshold)
    for index, batch in enumerate(batches):
        together = [*batch, request]
        if memory_tokens(len(together), *batch_lengths(together)) <= limits.capacity_tokens and wma(together) < least:
            best, least = index, float(wma(together))
    return best


@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), max_size=60),
    threshold=st.integers(1, 6000),
    capacity=st.integers(200, 1500),
)
def test_it_arranges_as_the_plain_algorithm(lengths: list[tuple[int, int]], threshold: int, capacity: int) -> None:
    limits = replace(LIMITS, options=Scheduling(wma_threshold=threshold), capacity_tokens=capacity)
    batcher = batcher_of((asked(row_id, *pair) for row_id, pair in enumerate(lengths)), "magnus", limits, threshold)
    plain: list[list[int]] = []
    for row_id, pair in enumerate(lengths):
        batches = [[BatchLengths(*lengths[other]) for other in batch] for batch in plain]
        choice = plain_choice(batches, BatchLengths(*pair), limits)
        if choice is None:
            plain.append([row_id])
        else:
            plain[choice].append(row_id)
    assert arranged(batcher) == plain


# What goes first


@pytest.mark.parametrize(("strategy", "order"), [("abp", [[0], [1], [2]]), ("magnus", [[2], [1], [0]])])
def test_batches_go_by_their_oldest_requests_or_by_their_response_ratios(strategy: str, order: list[list[int]]) -> None:
    """Long ago a long one came, later a short one, just now a shorter one; they are too unlike to run together. Ratios
    are 20 s / 400 s, 10 / 50 and 1 / 2."""
    requests = [asked(0, 10, 400, arrival=0.0), asked(1, 10, 50, arrival=10.0), asked(2, 10, 2, arrival=19.0)]
    assert taken(batcher_of(requests, strategy, threshold=1000), 20.0) == order


def test_a_long_batch_is_not_passed_over_for_ever() -> None:
    """Every second a short one comes, which is served after 1 s of waiting, at a ratio of 1 / 4. The long one has
    reached that after 100 s.
    """
    batcher, served = batcher_of([asked(0, 10, 400)], threshold=1000), list[list[int]]()
    for second in range(1, 400):
        batcher.add(asked(second, 10, 4, arrival=second - 1.0), second - 1.0)
        served += taken(batcher, float(second), 1)
    assert served.count([0]) == 1 and 90 < served.index([0]) < 120


def test_a_plan_says_what_was_expected_of_it_to_an_idle_executor() -> None:
    batcher = batcher_of([asked(0, 10, 20.2), asked(1, 12, 18)])
    assert batcher.take(worker(asked(9)), 0.0) is None and batcher.wake_at(0.0) is None, "only an idle one takes it"
    plan = batcher.take(idle(), 0.0)
    assert plan is not None and plan.estimate == 21.0
    assert plan.terms.closed and plan.terms.overflow is Overflow.SPLIT and plan.returns is Returns.BATCH_END
    plan = batcher_of([asked(0)], "glp").take(idle(), 0.0)
    assert plan is not None and plan.terms.overflow is Overflow.SCALE and plan.estimate == 0.0


# Too large


def test_a_batch_that_overflowed_comes_back_as_two_halves_that_nobody_joins() -> None:
    batcher = batcher_of(alike(range(5)))
    plan = batcher.take(idle(), 0.0)
    assert plan is not None
    batcher.hand_back(plan.requests, Cause.OVERFLOW, 1.0)
    halves = [[0, 1, 2], [3, 4]]
    assert arranged(filled(batcher, [asked(9)])) == [*halves, [9]]
    assert arranged(filled(batcher, [asked(10)])) == [*halves, [9, 10]]
    plan.requests[0].predicted_length = 400.0
    batcher.revise(plan.requests[0], 0.0)
    assert taken(batcher) == [*halves, [9, 10]], "they stay as they are"


@pytest.mark.parametrize(("cause", "batches"), [(Cause.OVERFLOW, [[0], [1]]), (Cause.PAUSE, [[0, 1]])])
def test_one_row_that_overflowed_waits_alone_others_are_arranged_again(cause: Cause, batches: list[list[int]]) -> None:
    batcher = batcher_of()
    batcher.hand_back([asked(0)], cause, 1.0)
    assert arranged(filled(batcher, [asked(1)])) == batches


SMALLER = [
    (idle(capacity=1000), [0, 1, 2, 3, 4, 5, 6, 7], []),
    (idle(capacity=100), [0, 1, 2, 3], [[4, 5, 6, 7]]),
    (idle(capacity=40), [0, 1], [[4, 5, 6, 7], [2, 3]]),
    (idle(rows=3), [0, 1], [[4, 5, 6, 7], [2, 3]]),
    (idle(capacity=15), [0], [[4, 5, 6, 7], [2, 3], [1]]),
]


@pytest.mark.parametrize(("worker", "taken", "left"), SMALLER)
def test_a_smaller_executor_takes_what_it_holds(worker: Worker, taken: list[int], left: list[list[int]]) -> None:
    """Eight rows of 20 columns."""
    batcher = batcher_of(alike(range(8)))
    assert (rows_of(batcher.take(worker, 0.0)), arranged(batcher)) == (taken, left)
    assert sorted(request.row_id for request in batcher.waiting) == sorted(sum(left, []))


def test_what_an_executor_holds_is_remembered_when_others_are_arranged() -> None:
    batcher = batcher_of(alike(range(2)))
    batcher.take(idle(capacity=40), 0.0)
    assert arranged(filled(batcher, alike(range(2, 7)))) == [[2, 3], [4, 5], [6]]


# Books


@pytest.mark.parametrize("gone", range(5))
def test_a_discarded_request_leaves_its_batch_wherever_it_was(gone: int) -> None:
    requests = [*alike(range(3)), asked(3, 200, 200), asked(4, priority=3)]
    batcher = batcher_of(requests)
    assert batcher.discard(requests[gone]) and not batcher.discard(requests[gone])
    assert sorted(sum(arranged(batcher), [])) == [row_id for row_id in range(5) if row_id != gone]
    assert requests[gone] not in batcher.waiting


def test_a_batch_that_lost_its_longest_request_takes_more() -> None:
    long, short = asked(0, 250, 250), asked(1, 10, 10)
    batcher = batcher_of([long, short], threshold=10**6)
    assert arranged(batcher) == [[0, 1]], "500 columns, twice"
    assert arranged(filled(batcher, [asked(2)])) == [[0, 1], [2]]
    batcher.discard(long)
    sizes = [len(batch) for batch in arranged(filled(batcher, alike(range(3, 60))))]
    assert sorted(sizes) == [9, 50], "each fills up to 50 rows of 20 columns"


def test_two_thousand_requests_each_wait_in_one_batch_and_none_breaks_a_bound() -> None:
    rng = random.Random(0)
    requests = [
        asked(row_id, rng.randint(1, 250), rng.randint(1, 250), arrival=row_id / 100, priority=rng.randint(0, 1))
        for row_id in range(2_000)
    ]
    batcher = batcher_of(requests)
    discarded = set(rng.sample(requests, 200))
    assert all(batcher.discard(request) for request in discarded)
    kept = [request for request in requests if request not in discarded]
    assert set(batcher.waiting) == set(kept) and len(batcher.waiting) == len(kept)
    taken: list[Request] = []
    while plan := batcher.take(idle(), 200.0):
        lengths = [expected_lengths(request, 500) for request in plan.requests]
        assert memory_tokens(len(lengths), *batch_lengths(lengths)) <= 1000 or len(lengths) == 1
        assert wma(lengths) < LIMITS.options.wma_threshold or len(lengths) == 1
        assert len({request.priority for request in plan.requests}) == 1
        taken += plan.requests
    assert len(taken) == len(kept) and set(taken) == set(kept) and not batcher.waiting


# Lengths


EXPECTED = [
    (10.0, 0, 500, (10, 10)),
    (9.2, 0, 500, (10, 10)),  # whole tokens, rather one too many
    (0.1, 0, 500, (10, 1)),
    (None, 0, 2000, (10, 1024)),  # as long as it may be
    (None, 0, None, (10, 1024)),
    (None, 0, 500, (10, 490)),
    (5000.0, 0, 2000, (10, 1024)),
    (10.0, 4, 500, (14, 6)),
    (10.0, 20, 500, (30, 1)),  # outlived
    (None, 20, 500, (30, 470)),
]


@pytest.mark.parametrize(("predicted", "generated", "context", "expected"), EXPECTED)
def test_lengths(predicted: float | None, generated: int, context: int | None, expected: tuple[int, int]) -> None:
    assert expected_lengths(asked(0, 10, predicted, generated=generated), context) == expected


# Predictions that change


def test_a_request_whose_prediction_changes_moves_to_the_batch_that_it_suits() -> None:
    changing = asked(2, predicted=10.0)
    batcher = batcher_of([asked(0, predicted=10.0), asked(1, predicted=400.0), changing])
    assert arranged(batcher) == [[0, 2], [1]]
    changing.predicted_length = 400.0
    batcher.revise(changing, 0.0)
    assert arranged(batcher) == [[0], [1, 2]]
    assert [request.row_id for request in batcher.waiting] == [0, 1, 2]
    batcher.revise(asked(3), 0.0)
    assert arranged(batcher) == [[0], [1, 2]]
