"""How many rows an executor is given, and which."""

from __future__ import annotations

from functools import partial

import pytest

from scheduler.batching.batcher import Limits
from scheduler.batching.continuous import ContinuousBatcher, busy_rows
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.machine import MachineModel
from scheduler.waiting.aged import Aging
from scheduler.waiting.prices import device_prices
from scheduler.waiting.promised import Promise, PromisedQueue
from tests.scheduler.fakes import kit, request, worker

LIMITS = Limits(group_tokens=1000, prefill_ahead=2)
SATURATED = Bilinear(0, 0, 0, 0, 0, 1.0, 0, 0.1)
"""Two rows make nearly as many tokens a second as four."""


def asked(row_id: int, predicted: float) -> Request:
    one = request(row_id)
    one.predicted_length = predicted
    return one


@pytest.mark.parametrize(
    ("profile", "capacity", "rows"),
    [(None, 1000, 6), (SATURATED, 1000, 3), (SATURATED, 900, 6), (Bilinear(0, 0, 0, 0, 0, 0, 0, 1.0), 1000, 6)],
)
def test_no_more_rows_than_keep_the_device_busy(profile: Bilinear | None, capacity: int, rows: int) -> None:
    """4 slots and 2 ahead; rows of 250 columns, of which 900 cells hold fewer than 4."""
    machine = MachineModel(profile)
    queue = PromisedQueue(device_prices(), Promise(), Aging())
    batcher = ContinuousBatcher(kit(LIMITS), queue=queue, most_rows=partial(busy_rows, machine))
    for row_id in range(8):
        batcher.add(asked(row_id, 8.0 - row_id), 0.0)
    plan = batcher.take(worker(capacity=capacity), 0.0)
    assert plan is not None
    assert [one.row_id for one in plan.requests] == list(range(7, 7 - rows, -1))
