"""Estimates that come after their requests have gone on: who hears of them, and who is forgotten."""

from __future__ import annotations

import asyncio
from functools import partial

from scheduler.length.microbatch import LateEstimates
from scheduler.length.prediction import Answer, Estimate
from tests.scheduler.fakes import request

ESTIMATE = Estimate((1.0,), None)


class Heard(list[Estimate]):
    def hear(self, estimate: Estimate) -> bool:
        self.append(estimate)
        return True


def answer() -> Answer:
    return asyncio.get_running_loop().create_future()


async def test_all_requests_of_one_prompt_hear_of_its_estimate_once() -> None:
    delays, heard = list[float](), list[tuple[int, Estimate]]()
    late, shared, other = LateEstimates(delays.append), answer(), answer()

    def hear(row_id: int, estimate: Estimate) -> bool:
        heard.append((row_id, estimate))
        return row_id == 1

    for row_id, awaited in enumerate((shared, shared, other)):
        late.expect(request(row_id), awaited, partial(hear, row_id))
    shared.set_result(ESTIMATE)
    await asyncio.sleep(0)
    assert heard == [(0, ESTIMATE), (1, ESTIMATE)]
    assert len(delays) == 1 and 0 < delays[0] < 60  # to whom it was of use


async def test_who_has_ended_hears_nothing_and_what_nobody_expects_is_cancelled() -> None:
    delays = list[float]()
    late, shared, heard = LateEstimates(delays.append), answer(), Heard()
    first, second = request(0), request(1)
    for one in (first, second):
        late.expect(one, shared, heard.hear)
    late.forget(first)
    late.forget(first)
    assert not shared.cancelled()
    late.forget(second)
    assert shared.cancelled()
    await asyncio.sleep(0)
    assert (heard, delays) == ([], [])


async def test_who_ends_just_when_it_comes_hears_nothing() -> None:
    late, came, heard, one = LateEstimates(), answer(), Heard(), request(0)
    late.expect(one, came, heard.hear)
    came.set_result(ESTIMATE)
    late.forget(one)
    await asyncio.sleep(0)
    assert heard == []


async def test_a_failed_prediction_tells_nobody_anything() -> None:
    delays = list[float]()
    late, came, heard, one = LateEstimates(delays.append), answer(), Heard(), request(0)
    late.expect(one, came, heard.hear)
    came.set_result(None)
    await asyncio.sleep(0)
    late.forget(one)
    assert (heard, delays) == ([], [])
