"""Estimates that come after their requests have gone on: who hears of them, and who is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from engine.messages import FinishReason
from scheduler.length.features import LengthQuery
from scheduler.length.learning import ServedRow
from scheduler.length.prediction import Answer, Estimate, LengthDistribution, Prediction, Source
from scheduler.request import Request
from server.cli.config import FrontConfig
from server.lengths.lengths import Lengths
from tests.scheduler.fakes import request

QUERY = LengthQuery("Translate.", "Hello", 3, 8)
ESTIMATE = Estimate((1.0,), LengthDistribution.certain(5.0))


class Stage:
    """Lengths, and what is told of estimates that come late."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.heard: list[tuple[int, float | None]] = []
        self.rows: list[ServedRow] = []
        self.lengths = Lengths(FrontConfig(), "m", learning=cast(Any, self), observe_late=self.delays.append)

    def add(self, row: ServedRow) -> None:
        """Learn from an answer."""
        self.rows.append(row)

    def note(self, row_id: int, late: Answer) -> Request:
        """A request that has gone on with a guess."""
        one = request(row_id)
        self.lengths.note(one, QUERY, Prediction(7.0, Source.HISTORY, late=late), self.revise)
        return one

    def revise(self, request: Request, length: float | None, distribution: LengthDistribution | None) -> None:
        self.heard.append((request.row_id, length))

    def end(self, one: Request) -> None:
        one.generated = 4
        self.lengths.on_end(one, FinishReason.STOP, 1.0)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def answer() -> Answer:
    return asyncio.get_running_loop().create_future()


async def test_all_requests_of_one_prompt_hear_of_its_estimate_once(stage: Stage) -> None:
    shared, other = answer(), answer()
    for row_id, awaited in enumerate((shared, shared, other)):
        stage.note(row_id, awaited)
    shared.set_result(ESTIMATE)
    await asyncio.sleep(0)
    assert stage.heard == [(0, 5.0), (1, 5.0)]
    assert len(stage.delays) == 2 and all(0 < delay < 60 for delay in stage.delays)
    assert not other.cancelled()


async def test_who_has_ended_hears_nothing_and_what_nobody_expects_is_cancelled(stage: Stage) -> None:
    shared = answer()
    first, second = stage.note(0, shared), stage.note(1, shared)
    stage.end(first)
    stage.end(first)
    assert not shared.cancelled()
    stage.end(second)
    assert shared.cancelled()
    await asyncio.sleep(0)
    assert (stage.heard, stage.delays) == ([], [])


async def test_of_those_that_share_an_estimate_the_others_still_hear_of_it(stage: Stage) -> None:
    shared = answer()
    first, second = stage.note(0, shared), stage.note(1, shared)
    stage.end(first)
    shared.set_result(ESTIMATE)
    await asyncio.sleep(0)
    stage.end(second)
    assert stage.heard == [(1, 5.0)]


async def test_who_ends_just_when_it_comes_hears_nothing(stage: Stage) -> None:
    came = answer()
    one = stage.note(0, came)
    came.set_result(ESTIMATE)
    stage.end(one)
    await asyncio.sleep(0)
    assert stage.heard == []


async def test_an_estimate_that_tells_no_length_is_still_good_to_learn_from(stage: Stage) -> None:
    came = answer()
    one = stage.note(0, came)
    came.set_result(Estimate((1.0,), None))
    await asyncio.sleep(0)
    stage.end(one)
    assert (stage.heard, stage.delays) == ([], [])
    assert [(row.features, row.predicted) for row in stage.rows] == [((1.0,), 7.0)]


async def test_a_failed_prediction_tells_nobody_anything(stage: Stage) -> None:
    came = answer()
    one = stage.note(0, came)
    came.set_result(None)
    await asyncio.sleep(0)
    stage.end(one)
    assert (stage.heard, stage.delays, stage.rows) == ([], [], [])
