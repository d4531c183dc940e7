"""Estimates that come late: who hears of them."""

import asyncio
from typing import Any, cast

import pytest

from engine.messages import FinishReason
from scheduler.length.features import LengthQuery
from scheduler.length.prediction import Answer, Estimate, LengthDistribution, Prediction, Source
from scheduler.request import Request
from server.config import FrontConfig
from server.lengths.lengths import Lengths
from tests.scheduler.fakes import request
from tests.server.lengths.test_records import Learned

LATE_QUERY = LengthQuery("Translate.", "Hello", 3, 8)
ESTIMATE = Estimate((1.0,), LengthDistribution.certain(5.0))


class LateStage(Learned):
    """Lengths, and what is told of estimates that come late."""

    def __init__(self) -> None:
        super().__init__()
        self.delays: list[float] = []
        self.heard: list[tuple[int, float | None]] = []
        self.lengths = Lengths(FrontConfig(), "m", learning=cast(Any, self), observe_late=self.delays.append)

    def note(self, row_id: int, late: Answer) -> Request:
        """A request that has gone on with a guess."""
        one = request(row_id)
        self.lengths.note(one, LATE_QUERY, Prediction(7.0, Source.HISTORY, late=late), self.revise)
        return one

    def revise(self, request: Request, length: float | None, distribution: LengthDistribution | None) -> None:
        self.heard.append((request.row_id, length))

    def end(self, one: Request) -> None:
        one.generated = 4
        self.lengths.on_end(one, FinishReason.STOP, 1.0)


@pytest.fixture
def stage() -> LateStage:
    return LateStage()


def answer() -> Answer:
    return asyncio.get_running_loop().create_future()


async def test_all_requests_of_one_prompt_hear_of_its_estimate_once(stage: LateStage) -> None:
    shared, other = answer(), answer()
    for row_id, awaited in enumerate((shared, shared, other)):
        stage.note(row_id, awaited)
    shared.set_result(ESTIMATE)
    await asyncio.sleep(0)
    assert stage.heard == [(0, 5.0), (1, 5.0)]
    assert len(stage.delays) == 2 and all(0 < delay < 60 for delay in stage.delays)
    assert not other.cancelled()


async def test_who_has_ended_hears_nothing_and_what_nobody_expects_is_cancelled(stage: LateStage) -> None:
    shared = answer()
    first, second = stage.note(0, shared), stage.note(1, shared)
    stage.end(first)
    stage.end(first)
    assert not shared.cancelled()
    stage.end(second)
    assert shared.cancelled()
    await asyncio.sleep(0)
    assert (stage.heard, stage.delays) == ([], [])


async def test_of_those_that_share_an_estimate_the_others_still_hear_of_it(stage: LateStage) -> None:
    shared = answer()
    first, second = stage.note(0, shared), stage.note(1, shared)
    stage.end(first)
    shared.set_result(ESTIMATE)
    await asyncio.sleep(0)
    stage.end(second)
    assert stage.heard == [(1, 5.0)]


async def test_who_ends_just_when_it_comes_hears_nothing(stage: LateStage) -> None:
    came = answer()
    one = stage.note(0, came)
    came.set_result(ESTIMATE)
    stage.end(one)
    await asyncio.sleep(0)
    assert stage.heard == []


@pytest.mark.parametrize(
    ("estimate", "learned"), [(Estimate((1.0,), None), [((1.0,), 7.0)]), (None, [])], ids=["no length", "failed"]
)
async def test_an_estimate_without_a_length_is_told_to_nobody_and_learned_from(
    stage: LateStage, estimate: Estimate | None, learned: list[object]
) -> None:
    came = answer()
    one = stage.note(0, came)
    came.set_result(estimate)
    await asyncio.sleep(0)
    stage.end(one)
    assert (stage.heard, stage.delays) == ([], [])
    assert [(row.features, row.predicted) for row in stage.rows] == learned
