from __future__ import annotations

import pytest

from engine.messages import Tally
from loadgen.simulate.node import WorkerRecord
from loadgen.simulate.report import SIDE_BY_SIDE, Ran, make_table
from loadgen.simulate.simulation import Served, Simulation, measure_simulation
from scheduler.serving_time.bilinear import Bilinear

COST = Bilinear(0, 0, 0, 1.0, 0, 0, 0, 0.25)  # a request of 7 tokens takes 2.5 s alone

DONE = Simulation(
    (Served(0.0, 1.0, 2.0, 11.25, 5, 7, 1, None),),
    (WorkerRecord(11.25, 1.0, 9.0, 9.0, Tally(prompt=5, generated=7)),),
)


def make_runs(count: int) -> list[Ran]:
    found = measure_simulation(DONE, COST)
    return [Ran({}, 0, f"strategy-{number}", found) for number in range(count)]


def test_a_table_shows_what_matters_most_and_how_far_each_is_from_the_first() -> None:
    later = {**measure_simulation(DONE, COST), "mean_jct_ms": 22_500.0}
    table = make_table([*make_runs(1), Ran({}, 0, "slow", later)], everything=False)
    heads = ("", "mean JCT (s)", "p99 JCT (s)", "mean TTFT (s)", "mean JCT per token (s)", "throughput (req/s)")
    assert table.heads == heads
    assert table.rows[0] == ("strategy-0", "11.2", "11.2", "2", "1.61", "0.0889")
    assert table.rows[1][1] == "22.5 +100%"


@pytest.mark.parametrize(("strategies", "is_by_lines"), [(1, False), (SIDE_BY_SIDE, False), (SIDE_BY_SIDE + 1, True)])
def test_all_figures_of_many_strategies_have_a_line_a_strategy(strategies: int, is_by_lines: bool) -> None:
    table = make_table(make_runs(strategies), everything=True)
    assert ("Longest job completion time (s)" in {row[0] for row in table.rows}) != is_by_lines
    assert (len(table.rows) == strategies) == is_by_lines
    told = dict(zip(table.heads, table.rows[0], strict=True)) if is_by_lines else {row[0]: row[1] for row in table.rows}
    assert told["mean slowdown" if is_by_lines else "Mean slowdown (JCT over that of the request alone)"] == "4.5"


def test_seeds_are_shown_as_their_mean_and_range() -> None:
    found = measure_simulation(DONE)
    runs = [Ran({}, seed, "only", {**found, "mean_jct_ms": jct}) for seed, jct in enumerate((1000.0, 3000.0))]
    assert make_table(runs, everything=False).rows[0][1] == "2 (1–3)"
