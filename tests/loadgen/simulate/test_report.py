"""Tables of simulations, and `simulate --sweep`: which values are played, and what table, CSV and page hold of them."""

import csv
import io
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.messages import StepStats
from engine.simulated.executor import DeviceUsage
from loadgen.commands import add_simulate
from loadgen.simulate.figures import measure_simulation
from loadgen.simulate.flags import SimulateFlags
from loadgen.simulate.report import SIDE_BY_SIDE, Ran, list_points, make_table, read_axes
from loadgen.simulate.simulation import Served, Simulation, simulate
from models.errors import UserError
from scheduler.serving_time.bilinear import Bilinear
from tests.server.cli.commands.runner import run_command

COST = Bilinear(0, 0, 0, 1.0, 0, 0, 0, 0.25)  # a request of 7 tokens takes 2.5 s alone

DONE = Simulation(
    (Served(0.0, 1.0, 2.0, 11.25, 5, 7, 1, None),),
    (DeviceUsage(11.25, 1.0, 9.0, 9.0, StepStats(prompt=5, generated=7)),),
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


run = partial(run_command, add_simulate, "simulate")
SHORT = ("--duration", 2, "--dataset-name", "random", "--strategies", "vs,baton-pd")


def test_ranges_are_written_out_with_their_last_value() -> None:
    rate, noise, rows = read_axes(["rate=0.5:1.5:0.25,3", "noise=0,0.3", "--max-num-seqs=8:2:-3"])
    assert rate.values == {text: float(text) for text in ("0.5", "0.75", "1", "1.25", "1.5", "3")}
    assert noise.flag == "prediction"
    assert {text: str(one) for text, one in noise.values.items()} == {"0": "oracle", "0.3": "noisy:0.3"}
    assert (rows.flag, rows.values) == ("max_num_seqs", {"8": 8, "5": 5, "2": 2})


def test_every_combination_is_played_the_last_axis_fastest() -> None:
    points = list(list_points(SimulateFlags(workers=2), read_axes(["rate=1,2", "seed=3,4"])))
    played = [(flags.rate, flags.seed, flags.workers) for _, flags in points]
    assert played == [(1.0, 3, 2), (1.0, 4, 2), (2.0, 3, 2), (2.0, 4, 2)]
    assert points[1][0] == {"rate": "1", "seed": "4"}


NO_SWEEPS = [
    (["rates=1,2"], "with a flag of simulate; did you mean rate"),
    (["rate"], "write NAME=1,2,3 or NAME=FIRST:LAST:STEP"),
    (["rate=1:2:0"], "1:2:0 is no range"),
    (["rate=2:1:0.5"], "2:1:0.5 is no range"),
    (["rate=0:1:1e-9"], "at most 10,000 numbers"),
    (["rate=1,-2"], "'-2' is not a finite number above 0"),
    (["noise=x"], "noisy:SIGMA"),
    (["rate=1", "--rate=2"], "two of them vary the same flag"),
    (["noise=1", "prediction=oracle"], "two of them vary the same flag"),
]


@pytest.mark.parametrize(("sweep", "message"), NO_SWEEPS)
def test_what_cannot_be_swept_is_told(sweep: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_axes(sweep)


def test_table_csv_and_page_have_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For each strategy and point."""
    table, page = tmp_path / "out.csv", tmp_path / "out.html"
    assert run(*SHORT, "--sweep", "rate=2,4", "--sweep", "noise=0,0.7", "--csv", table, "--report", page) == 0
    shown = capsys.readouterr().out
    assert "rate 4, noise 0.7 baton-pd" in shown and "rate=2,4, noise=0,0.7" in shown
    assert "seeds 0 to 4" in shown and "requests/s, seeds" not in shown, "what is swept has no value of its own"
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [(row["rate"], row["noise"], row["seed"], row["strategy"], row["completed"]) for row in rows] == [
        (rate, noise, str(seed), name, count)
        for rate, count in (("2", "4"), ("4", "8"))
        for noise in ("0", "0.7")
        for seed in range(5)
        for name in ("vs", "baton-pd")
    ]
    assert float(rows[0]["mean_jct_ms"]) > 0
    html = page.read_text()
    assert html.count("<svg") == 2 * 3 and html.count("<table") == 2
    assert "mean JCT (s) over rate at noise 0.7" in html and "▲" in html


def test_the_same_point_alone_has_the_same_figures(tmp_path: Path) -> None:
    swept, alone = tmp_path / "swept.csv", tmp_path / "alone.csv"
    assert run(*SHORT, "--rate", 4, "--sweep", "seed=1,2", "--csv", swept) == 0
    assert run(*SHORT, "--rate", 4, "--seed", 2, "--csv", alone) == 0
    _, *rows = csv.reader(io.StringIO(swept.read_text()))
    _, *same = csv.reader(io.StringIO(alone.read_text()))
    assert [row for row in rows if row[0] == "2"] == same


def test_ctrl_c_in_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes of a sweep were lost with the last of its points."""
    table, begun = tmp_path / "out.csv", []

    def interrupt(*arguments: Any, **options: Any) -> Any:
        begun.append(1)
        if len(begun) == 4:
            raise KeyboardInterrupt
        return simulate(*arguments, **options)

    monkeypatch.setattr("loadgen.simulate.run.simulate", interrupt)
    assert run(*SHORT, "--sweep", "rate=2,4", "--csv", table) == 130
    assert len(table.read_text().splitlines()) == 1 + 3
    assert "interrupted: these are the 3 simulations" in capsys.readouterr().err
