"""Told ends in the simulator, where a queue stands, and the table of them."""

from dataclasses import replace

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


@pytest.mark.parametrize("rho", [0.95, 1.3])
def test_a_new_server_that_knows_no_length_yet_keeps_nine_of_ten_of_its_first_promises(rho: float) -> None:
    """Of six seeds together 0.80 to 0.86 of the first sixty: a mean of few answers told the high end."""
    first = list[bool]()
    for seed in range(6):
        cell = Cell("A100, scarce slots", "log-normal", rho, prediction="none", requests=90, seed=seed)
        told = promises.play(Scenario(cell), DEFAULT)[:60]
        first += [one.is_kept for one in told if one.request.expected and one.request.expected.known]
    assert sum(first) >= 0.9 * len(first)


def test_promises_asked_for_are_given_where_they_can_be_kept() -> None:
    scenario = Scenario(replace(QUEUE, rho=0.7, prediction="oracle", requests=600))
    base = promises.play(scenario, promises.without_promises(DEFAULT))
    told = promises.play(scenario, DEFAULT, base)
    refused, oracle, broken = promises.judge_asked(told, base)
    asked = [one.request.promised is not None for one in told]
    assert 0 < sum(asked) == sum(asked[:: promises.ASKED]) < 200
    assert oracle <= refused < 1 and broken <= 0.05


def test_order_keeps_promises_that_would_break_without_it(told: list[promises.Told]) -> None:
    unkept = promises.play(Scenario(QUEUE), promises.without_promises(DEFAULT))
    kept = [promises.judge(each, each)[:2] for each in (told, unkept)]
    assert kept[0] > kept[1]


def test_the_table_has_a_line_for_each_scenario_and_changes_come_in_the_middle() -> None:
    cell = Cell("small CPU", "servegen", 0.9, prediction="none", requests=150)
    table = promises.tabulate([Scenario(cell), Scenario(cell, "slower"), Scenario(cell, "long")])
    assert [row[0].rpartition(", ")[2] for row in table.rows] == ["0.9", "then slower", "then long"]
    assert all(len(row) == len(promises.HEADS + promises.ASKED_HEADS) for row in table.rows)
    plain, slower, long = (promises.play(Scenario(cell, change), DEFAULT) for change in ("", "slower", "long"))
    half = len(plain) // 2
    assert slower[-1].seconds > plain[-1].seconds
    for one, other in zip(plain, long, strict=True):
        factor = 1 if one.request.row_id < half else 2
        assert other.request.generated == min(2048 - one.request.input_length, factor * one.request.generated)


def test_scenarios_have_loads_bursts_shapes_predictions_and_changes() -> None:
    cells = [one.cell for one in promises.list_scenarios(10)]
    assert {one.load for one in cells} == {"log-normal", "servegen", "mooncake"}
    assert {one.prediction for one in cells} == {"noisy:0.5", "oracle", "inverted", "none"}
    assert min(one.rho for one in cells) < 1 < max(one.rho for one in cells)
    assert min(one.burstiness for one in cells) < 1
    assert {one.change for one in promises.list_scenarios(10)} == {"", "slower", "faster", "long"}
