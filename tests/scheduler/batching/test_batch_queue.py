"""Batches that wait: their numbers, and which is served first."""

from __future__ import annotations

import random

import numpy as np
import pytest

from scheduler.batching.wma import BatchQueue, Column, Lengths, WaitingBatch, hrrn, useful_reads
from tests.scheduler.fakes import request


def written(batch: WaitingBatch) -> list[float]:
    """The columns of a batch, computed afresh."""
    useful = [useful_reads(*lengths) for lengths in batch.rows.values()]
    arrivals = [one.times.arrival for one in batch.rows]
    (priority,) = {one.priority for one in batch.rows}
    return [len(batch), *batch.lengths, min(useful), min(arrivals), priority, batch.insertable]


@pytest.mark.parametrize("seed", range(5))
def test_the_numbers_follow_whatever_happens_to_the_batches(seed: int) -> None:
    rng = random.Random(seed)
    queue = BatchQueue()
    for row_id in range(400):
        one = request(row_id, arrival=rng.random(), priority=0)
        lengths = Lengths(rng.randint(1, 50), rng.randint(1, 50))
        match rng.choice(["open", "join", "join", "leave", "leave", "remove"]):
            case "open":
                queue.open(WaitingBatch({one: lengths}, insertable=rng.random() < 0.5))
            case "join" if queue:
                queue.join(rng.randrange(len(queue)), one, lengths)
            case "leave" if queue:
                batch = queue[rng.randrange(len(queue))]
                queue.leave(batch, rng.choice(list(batch.rows)))
            case "remove" if len(queue) > 10:
                first, index = queue[0], rng.randrange(1, len(queue))
                assert queue.remove(index) not in list(queue) and queue[0] is first
        if rng.random() < 0.5:  # some changes are read together
            assert queue.numbers.T.tolist() == [written(batch) for batch in queue]
    assert len(queue) > 3 and queue.numbers.shape == (len(Column), len(queue))


@pytest.mark.parametrize(("rows", "sizes"), [(2, (1, 1)), (6, (3, 3)), (7, (4, 3))])
def test_halves_are_even_keep_their_order_and_take_nobody_in(rows: int, sizes: tuple[int, int]) -> None:
    requests = [request(row_id) for row_id in range(rows)]
    batch = WaitingBatch({one: Lengths(1, 1) for one in requests})
    halves = batch.halves()
    assert tuple(len(half) for half in halves) == sizes
    assert [one for half in halves for one in half.rows] == requests
    assert not any(half.insertable for half in halves)


WAITED = np.array([10.0, 6.0, 1.0])


def test_the_highest_response_ratio_weighs_waiting_against_serving() -> None:
    """10 / 40, 6 / 5 and 1 / 0.5."""
    ratios = hrrn(WAITED, np.array([40.0, 5.0, 0.5]))
    assert ratios.tolist() == [0.25, 1.2, 2.0]


def test_a_batch_that_takes_long_goes_once_it_has_waited_long() -> None:
    assert hrrn(np.array([400.0, 6.0]), np.array([40.0, 1.0])).argmax() == 0


def test_an_estimate_of_nothing_divides_nothing() -> None:
    assert np.isfinite(hrrn(WAITED, np.zeros(3))).all()
