"""Told ends in the simulator, where a queue stands, and the table of them."""

from __future__ import annotations

import pytest

from loadgen.experiments.grid.cells import Cell
from loadgen.experiments.validation import promises
from loadgen.experiments.validation.promises import Scenario
from scheduler.strategy import STRATEGIES

QUEUE = Cell("A100, scarce slots", "log-normal", 1.2, prediction="noisy:0.5", requests=1000)
DEFAULT = STRATEGIES["lengthwise"]


@pytest.fixture(scope="module")
def told() -> list[promises.Told]:
    return promises.play(Scenario(QUEUE), DEFAULT)


def test_nineteen_of_twenty_ends_come_as_told_in_every_part_of_a_queue(told: list[promises.Told]) -> None:
    """Those told a place behind the cheapest of an overload waited 3.8 times as long: half of them were late."""
    kept, *parts = promises.judge(told, told)[:5]
    assert kept >= 0.93 and min(parts) >= 0.83
    assert all(one.request.expected is not None and one.request.times.end is not None for one in told)


def test_order_keeps_promises_that_would_break_without_it(told: list[promises.Told]) -> None:
    unkept = promises.play(Scenario(QUEUE), promises.without_promises(DEFAULT))
    kept = [promises.judge(each, each)[:2] for each in (told, unkept)]
    assert kept[0] > kept[1]


def test_the_table_has_a_line_for_each_scenario_and_changes_come_in_the_middle() -> None:
    cell = Cell("small CPU", "servegen", 0.9, prediction="none", requests=150)
    table = promises.tabulate([Scenario(cell), Scenario(cell, "slower"), Scenario(cell, "long")])
    assert [row[0].rpartition(", ")[2] for row in table.rows] == ["0.9", "then slower", "then long"]
    assert all(len(row) == len(promises.HEADS) for row in table.rows)
    plain, slower, long = (promises.play(Scenario(cell, change), DEFAULT) for change in ("", "slower", "long"))
    half = len(plain) // 2
    assert slower[-1].seconds > plain[-1].seconds
    for one, other in zip(plain, long, strict=True):
        factor = 1 if one.request.row_id < half else 2
        assert other.request.generated == min(2048 - one.request.input_length, factor * one.request.generated)


def test_scenarios_have_loads_bursts_shapes_predictions_and_changes() -> None:
    cells = [one.cell for one in promises.list_scenarios(10)]
    assert {one.load for one in cells} == {"log-normal", "servegen", "mooncake"}
    assert {one.prediction for one in cells} == {"noisy:0.5", "oracle", "inverted"}
    assert (
        min(one.rho for one in cells) < 1 < max(one.rho for one in cells) and min(one.burstiness for one in cells) < 1
    )
    assert {one.change for one in promises.list_scenarios(10)} == {"", "slower", "faster", "long"}
