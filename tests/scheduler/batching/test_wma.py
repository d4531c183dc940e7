"""Wasted memory accesses: the paper's equations by hand, and the short way to them against the long one; and batches
that wait: their numbers, and which is served first."""

import random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from scheduler.batching import wma as module
from scheduler.batching.wma import (
    BatchLengths,
    WaitingBatch,
    batch_lengths,
    memory_tokens,
    useful_reads,
    wma_from_least,
)
from tests.scheduler.batching.wma_oracle import wma
from tests.scheduler.fakes import request

ROWS = (BatchLengths(2, 3), BatchLengths(4, 5), BatchLengths(5, 2))
BATCH = BatchLengths(5, 5)

LENGTHS = st.builds(BatchLengths, st.integers(1, 5000), st.integers(1, 5000))


def test_equations_4_and_5_by_hand() -> None:
    """The most wasteful row of 36, 15 and 34; a row alone is charged for one iteration."""
    assert batch_lengths(ROWS) == BATCH and BATCH.columns == 10
    assert (wma(ROWS), wma([BatchLengths(100, 20)])) == (36, 120)
    assert memory_tokens(3, *BATCH) == 30, "padding and invalid tokens too"


def test_useful_and_wasted_reads_are_all_reads() -> None:
    assert [useful_reads(*row) for row in ROWS] == [2 + 3 + 4, 4 + 5 + 6 + 7 + 8, 5 + 6]
    assert module.all_reads(*BATCH) == 5 + 6 + 7 + 8 + 9 + 10
    assert [module.all_reads(*BATCH) - useful_reads(*row) for row in ROWS] == [36, 15, 34]


@given(rows=st.lists(LENGTHS, min_size=1, max_size=20))
def test_the_least_useful_reads_tell_the_waste_of_a_batch(rows: list[BatchLengths]) -> None:
    batch = batch_lengths(rows)
    least = min(useful_reads(*row) for row in rows)
    assert wma_from_least(*batch, least) == wma(rows)


@pytest.mark.parametrize("seed", range(5))
def test_the_numbers_of_a_batch_follow_whoever_joins_and_leaves(seed: int) -> None:
    rng = random.Random(seed)
    batch = WaitingBatch({request(0, arrival=rng.random()): BatchLengths(9, 9)})
    for row_id in range(1, 400):
        if len(batch) > 1 and rng.random() < 0.5:
            del batch.rows[rng.choice(list(batch.rows))]
        else:
            lengths = BatchLengths(rng.randint(1, 50), rng.randint(1, 50))
            batch.rows[request(row_id, arrival=rng.random())] = lengths
        batch.count()
        inputs, generations = zip(*batch.rows.values(), strict=True)
        assert batch.lengths == (max(inputs), max(generations))
        assert batch.least_useful == min(useful_reads(*lengths) for lengths in batch.rows.values())
        assert batch.oldest == min(one.times.arrival for one in batch.rows)


WAITED = np.array([10.0, 6.0, 1.0])


def test_the_highest_response_ratio_weighs_waiting_against_serving() -> None:
    """10 / 40, 6 / 5 and 1 / 0.5; an estimate of nothing divides nothing."""
    assert module.hrrn(WAITED, np.array([40.0, 5.0, 0.5])).tolist() == [0.25, 1.2, 2.0]
    assert np.isfinite(module.hrrn(WAITED, np.zeros(3))).all()
