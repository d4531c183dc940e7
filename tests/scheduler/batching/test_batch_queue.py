"""Batches that wait: their numbers, and which is served first."""

import random

import numpy as np
import pytest

from scheduler.batching.wma import BatchLengths, WaitingBatch, hrrn, useful_reads
from tests.scheduler.fakes import request


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


@pytest.mark.parametrize(("rows", "sizes"), [(2, (1, 1)), (6, (3, 3)), (7, (4, 3))])
def test_halves_are_even_keep_their_order_and_take_nobody_in(rows: int, sizes: tuple[int, int]) -> None:
    requests = [request(row_id) for row_id in range(rows)]
    batch = WaitingBatch({one: BatchLengths(1, 1) for one in requests})
    halves = batch.halves()
    assert tuple(len(half) for half in halves) == sizes
    assert [one for half in halves for one in half.rows] == requests
    assert not any(half.insertable for half in halves)


WAITED = np.array([10.0, 6.0, 1.0])


def test_the_highest_response_ratio_weighs_waiting_against_serving() -> None:
    """10 / 40, 6 / 5 and 1 / 0.5."""
    ratios = hrrn(WAITED, np.array([40.0, 5.0, 0.5]))
    assert ratios.tolist() == [0.25, 1.2, 2.0]


def test_an_estimate_of_nothing_divides_nothing() -> None:
    assert np.isfinite(hrrn(WAITED, np.zeros(3))).all()
