"""Rules of a row's way through a device, on the engine and on the simulator: they must be the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from engine.messages import Entry, RowId, RowSpec, Terms
from models.network.loader import LoadedModel
from models.text import Text
from tests.engine.rows import spec
from tests.engine.twins import Engine, MakeTwin, Simulated, Twin

CLOSED = Terms(closed=True)
SHAPE = Terms(entry=Entry.SHAPE)


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


def ranked(row_id: RowId, priority: int, length: int, max_tokens: int) -> RowSpec:
    return replace(spec(row_id, length, max_tokens), priority=priority)


def ended(twin: Twin, count: int = 1) -> tuple[list[RowId], list[list[RowId]]]:
    """The next rows to end, and what runs after each step until then."""
    ends: list[RowId] = []
    steps: list[list[RowId]] = []
    while len(ends) < count:
        assert len(steps) < 500, "it makes no progress"
        ends += [update.row_id for update in twin.step() if update.finish_reason is not None]
        steps.append(twin.running)
    return ends, steps


@pytest.mark.parametrize("terms", [Terms(), SHAPE], ids=["embed", "shape"])
def test_no_row_makes_way_for_one_that_cannot_come_in(make: MakeTwin, terms: Terms) -> None:
    """By shape, the third would open 140 columns behind those that the first spans: too many for two rows. Its own 140
    alone would fit, and by that measure the second was copied out and in at every step and made no token."""
    twin = make(400 if terms.entry is Entry.SHAPE else 330, 4, 32)
    twin.admit([ranked(0, 0, 100, 60), ranked(1, 1, 100, 20)], terms)
    for _ in range(4):
        twin.step()
    assert twin.running == [0, 1]
    twin.admit([ranked(2, 0, 140, 5)], terms)
    ends, steps = ended(twin)
    assert ends == [1] and all(running == [0, 1] for running in steps[:-1])
    assert ended(twin, 2)[0] == [0, 2]


def test_holes_take_room_from_who_would_displace_others(make: MakeTwin) -> None:
    """The second row entered with 60 tokens, so the first has 60 columns of which one is its own, and keeps them when
    the second is gone: 62 columns are left for the two rows of 125, and 20 tokens more do not go into them."""
    twin = make(160, 4, 0)
    twin.admit([ranked(0, 0, 10, 40)], SHAPE)
    twin.step()
    twin.admit([ranked(1, 1, 60, 4)], SHAPE)
    twin.step()
    twin.admit([ranked(2, 0, 20, 5)], SHAPE)
    ends, steps = ended(twin)
    assert ends == [1] and all(running == [0, 1] for running in steps[:-1])
    assert ended(twin, 2)[0] == [0, 2]


def test_a_row_in_host_memory_is_not_copied_in_to_make_way_at_once(make: MakeTwin) -> None:
    """Whenever a better row ends another enters, and the worse one stays where it is."""
    twin = make(100, 1, 0)
    twin.admit([ranked(0, 1, 10, 20)], SHAPE)
    twin.step()
    twin.admit([ranked(row_id, 0, 10, 3) for row_id in (1, 2, 3)], SHAPE)
    assert ended(twin, 4)[0] == [1, 2, 3, 0]
    assert twin.left == {0: 2, 1: 1, 2: 1, 3: 1}
