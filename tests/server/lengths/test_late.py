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


ORDERS = [
    # what happens to three requests that share an estimate: it comes (c), all else has its turn (.), one ends (0, 1, 2)
    ("c.012", [0, 1, 2]),
    ("0c.12", [1, 2]),
    ("c0.12", [1, 2]),  # it ends just when the estimate comes
    ("0011.2", []),
]


@pytest.mark.parametrize(("order", "heard"), ORDERS)
async def test_of_those_that_share_an_estimate_some_hear(stage: LateStage, order: str, heard: list[int]) -> None:
    """Who still runs, and once."""
    shared, other = answer(), answer()
    rows = [stage.note(row_id, shared) for row_id in range(3)]
    stage.note(3, other)
    for place, event in enumerate(order):
        assert not shared.cancelled(), order[:place]
        if event == "c":
            shared.set_result(ESTIMATE)
        elif event == ".":
            await asyncio.sleep(0)
        else:
            stage.end(rows[int(event)])
    assert stage.heard == [(row_id, 5.0) for row_id in heard]
    assert len(stage.delays) == len(heard) and all(0 < delay < 60 for delay in stage.delays)
    assert shared.cancelled() == ("c" not in order) and not other.cancelled()


@pytest.mark.parametrize(("estimate", "learned"), [(Estimate((1.0,), None), [((1.0,), 7.0)]), (None, [])])
async def test_an_estimate_without_a_length_is_learned_from(stage: LateStage, estimate: Any, learned: object) -> None:
    """And told to nobody."""
    came = answer()
    one = stage.note(0, came)
    came.set_result(estimate)
    await asyncio.sleep(0)
    stage.end(one)
    assert (stage.heard, stage.delays) == ([], [])
    assert [(row.features, row.predicted) for row in stage.rows] == learned
