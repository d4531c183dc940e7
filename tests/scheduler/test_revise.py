"""Predictions that change while requests wait, in every strategy: nobody is lost, doubled, or brought back."""

import pytest

from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.options import Scheduling
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import STRATEGIES
from tests.scheduler.fakes import request, worker

LIMITS = BatchLimits(200, 0, options=Scheduling(max_batch_size=3)).within(2000, 500, 4)
PROFILE = Bilinear(*(0.001 for _ in range(8)))


def arrivals(count: int) -> list[Request]:
    made = [request(row_id, 4 + row_id, arrival=float(row_id)) for row_id in range(count)]
    for one in made:
        one.predicted_length = 10.0
    return made


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_each_request_is_handed_out_once_whatever_becomes_known_of_it(strategy: str) -> None:
    batcher = assemble(STRATEGIES[strategy], LIMITS, PROFILE).batcher
    requests, taken = arrivals(9), list[Request]()
    for one in requests[:6]:
        batcher.add(one, 6.0)
    for now, more in ((10.0, requests[6:]), *((11.0 + turn, []) for turn in range(9))):
        plan = batcher.take(worker(capacity=2000), now)
        taken += plan.requests if plan is not None else ()
        for one in more:
            batcher.add(one, now)
        waiting = set(batcher.waiting)
        for place, one in enumerate(requests):
            one.predicted_length = 1.0 + 97 * place % 13
            batcher.revise(one, now)
        assert set(batcher.waiting) == waiting
    assert sorted(one.row_id for one in taken) == list(range(9))
