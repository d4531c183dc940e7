"""Predictions that change while requests wait, in every strategy: nobody is lost, doubled, or brought back."""

import pytest

from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.options import Scheduling
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import STRATEGIES
from tests.scheduler.fakes import filled, request, rows_of, worker

LIMITS = BatchLimits(200, 0, options=Scheduling(max_batch_size=3)).within(2000, 500, 4)
PROFILE = Bilinear(*(0.001 for _ in range(8)))


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_each_request_is_handed_out_once_whatever_becomes_known_of_it(strategy: str) -> None:
    requests = [request(row_id, 4 + row_id, arrival=float(row_id), predicted_length=10.0) for row_id in range(9)]
    batcher, taken = filled(assemble(STRATEGIES[strategy], LIMITS, PROFILE).batcher, requests[:6]), list[int]()
    for now, more in ((10.0, requests[6:]), *((11.0 + turn, []) for turn in range(9))):
        taken += rows_of(batcher.take(worker(capacity=2000), now))
        waiting = set(filled(batcher, more).waiting)
        for place, one in enumerate(requests):
            one.predicted_length = 1.0 + 97 * place % 13
            batcher.revise(one, now)
        assert set(batcher.waiting) == waiting
    assert sorted(taken) == list(range(9))
