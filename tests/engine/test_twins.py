"""Rules of a row's way through a device, on the engine and on the simulator: they must be the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from engine.messages import Terms
from models.loader import LoadedModel
from models.text import Text
from tests.engine.rows import spec
from tests.engine.twins import Engine, MakeTwin, Simulated

CLOSED = Terms(closed=True)


@pytest.fixture(params=["engine", "simulated"])
def make(request: pytest.FixtureRequest, tiny_model: LoadedModel, tiny_text: Text) -> MakeTwin:
    return partial(Engine, tiny_model, tiny_text) if request.param == "engine" else Simulated


def test_a_closed_batch_that_fills_the_device_runs_whole(make: MakeTwin) -> None:
    """It was measured to fit by its scheduler, so its rows need no columns to spare."""
    twin = make(4 * 28, 4, 32)
    twin.admit([spec(row_id, 20, max_tokens=30) for row_id in range(4)], replace(CLOSED, iterations=8))
    steps = []
    while not (handed_back := twin.handed_back):
        twin.step()
        steps.append(twin.running)
    assert steps == [[], *[[0, 1, 2, 3]] * 7, []]
    assert [one.row_ids for one in handed_back] == [(0, 1, 2, 3)]
