"""The grid: its cells, its loads, its figures by hand, and a small one from the flags to tables and the picture."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from loadgen.experiments.grid.cells import HARD, Cell, all_cells
from loadgen.experiments.grid.contenders import BASE, CONTENDERS
from loadgen.experiments.grid.figures import compare
from loadgen.experiments.grid.loads import LONGEST, SHAPES, TASKS, check_predicted, check_traces, load_lengths
from loadgen.experiments.grid.machines import MACHINES
from loadgen.experiments.grid.options import Grid
from loadgen.experiments.grid.report import draw, group_cells, show
from loadgen.experiments.grid.run import measure, measure_capacity, run_grid
from models.errors import UserError
from models.flags import read_options
from server.cli import main as cli

ONE = Cell("small CPU", "bimodal", 1.3, 1.0, "noisy:0.3", 0)
OTHER = Cell("small CPU", "narrow", 1.0, 0.02, "noisy:0.3", 0)


def test_every_machine_meets_every_load_once_a_seed() -> None:
    cells = all_cells(("trace.csv",), 2)
    assert len(set(cells)) == len(cells) == 2 * len(MACHINES) * (7 * 5 - 5 + 4 * 4)
    assert {(cell.machine, cell.load) for cell in cells[:60]} >= {(machine, "bimodal") for machine in MACHINES}
    assert all_cells((), 1) == all_cells((), 1)


@pytest.mark.parametrize("load", [*SHAPES, TASKS])
def test_loads_are_repeatable_and_short_enough(load: str) -> None:
    lengths = load_lengths(load, 50, 3)
    assert len(lengths) == 50 and lengths == load_lengths.__wrapped__(load, 50, 3)
    assert max(max(one.input_length, one.output_length) for one in lengths) <= LONGEST
    assert min(min(one.input_length, one.output_length) for one in lengths) >= 1


def test_a_tenth_of_the_log_normal_answers_holds_half_of_all_tokens() -> None:
    answers = np.sort([one.output_length for one in load_lengths("log-normal", 2000, 0)])
    assert 0.4 < answers[-200:].sum() / answers.sum() < 0.6


def test_figures_are_of_the_load_and_equal_when_measured_again() -> None:
    found = measure(ONE, "lengthwise", 40)
    assert found == measure(ONE, "lengthwise", 40)
    assert 0 < found["mean"] < found["p99"] <= found["longest"]
    assert found["throughput"] <= 1.3 * measure_capacity(ONE.machine, ONE.load, 40, 0)


def test_differences_are_geometric_means_and_count_what_is_beyond_the_limits() -> None:
    base = {"mean": 10.0, "p99": 20.0, "longest": 40.0, "throughput": 2.0}
    better = {"mean": 5.0, "p99": 22.4, "longest": 40.0, "throughput": 2.2}
    worse = {"mean": 10.4, "p99": 20.0, "longest": 90.0, "throughput": 1.0}
    results = {ONE: {BASE: base, "a": better}, OTHER: {BASE: base, "a": worse}}
    same, one = compare(results, (BASE, "a"), [ONE, OTHER])
    assert (same.mean, same.p99, same.beyond) == (1.0, 1.0, 0)
    assert one.mean == pytest.approx((0.5 * 1.04) ** 0.5) and one.p99 == pytest.approx(1.12**0.5)
    worst = (one.worst_mean, one.worst_p99, one.worst_longest, one.least_throughput)
    assert worst == pytest.approx((1.04, 1.12, 2.25, 0.5))
    assert one.beyond == 1
    assert compare(results, (BASE,), []) == []


def test_a_grid_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    file, steps = tmp_path / "grid.jsonl", list[None]()
    results = run_grid(file, [ONE, OTHER], 12, lambda: steps.append(None))
    assert {cell: set(found) for cell, found in results.items()} == dict.fromkeys((ONE, OTHER), set(CONTENDERS))
    lines = file.read_text().splitlines()
    assert len(lines) == len(steps) == 2 * len(CONTENDERS)
    file.write_text("\n".join(lines[:-3]) + "\n")
    assert run_grid(file, [ONE, OTHER], 12, lambda: None) == results
    assert sorted(file.read_text().splitlines()) == sorted(lines)
    out = io.StringIO()
    show(results, Console(file=out, width=200))
    assert "all: 2 cells" in out.getvalue() and out.getvalue().count("lengthwise") == len(group_cells(results))
    assert draw(results).startswith("<svg")


def test_a_trace_that_will_not_do_is_refused_before_the_first_run(tmp_path: Path) -> None:
    """It was found to be wrong only when its first cell was next, minutes later."""
    trace = tmp_path / "some.csv"
    rows = [f"2023-11-16 18:{minute}:00,5,5" for minute in range(10, 40)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    with pytest.raises(UserError, match=r"has 15 answered requests from second 900 on, and 20 .* or fewer --seeds"):
        check_traces([str(trace)], 12, 2)
    with pytest.raises(UserError, match="cannot be read"):
        check_traces([str(tmp_path / "none.csv")], 12, 1)


def test_its_flags_may_begin_as_several_of_bench_do() -> None:
    """`bench` refused --trace as short for one of --trace-start, --trace-duration and --trace-speed."""
    args = cli.build_parser().parse_args(["bench", "grid", "--trace", "a.csv", "--trace", "b.csv"])
    assert read_options(args, Grid).trace == ("a.csv", "b.csv")


def test_predicted_lengths_may_come_from_a_file(tmp_path: Path) -> None:
    """A file of the true lengths is an oracle; the same lines backwards are not."""
    trace, file, backwards = tmp_path / "trace.csv", tmp_path / "told.txt", tmp_path / "backwards.txt"
    lengths = [1 + place * 7 % 60 * 15 for place in range(1, 61)]
    rows = [f"2023-11-16 18:{place:02}:00.0,20,{length}" for place, length in enumerate(lengths)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    file.write_text("\n".join(map(str, lengths)) + "\n")
    backwards.write_text("\n".join(map(str, reversed(lengths))) + "\n")
    check_predicted([str(trace)], [str(file)], 60)
    cells = all_cells([str(trace)], 2, [str(file)])
    told = Cell("A100, scarce slots", str(trace), HARD, 1.0, f"file:{file}", 0)
    assert told in cells and len(cells) == len(all_cells([str(trace)], 2)) + len(MACHINES)
    true, wrong = replace(told, prediction="oracle"), replace(told, prediction=f"file:{backwards}")
    assert measure(told, "srpt", 60) == measure(true, "srpt", 60) != measure(wrong, "srpt", 60)


def test_each_request_of_a_trace_wants_its_predicted_length(tmp_path: Path) -> None:
    trace, file = tmp_path / "trace.csv", tmp_path / "told.txt"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "2023-11-16 18:15:10.0,20,5\n" * 20)
    file.write_text("7\n8\n")
    check_predicted([str(trace)], [str(file)], 2)
    with pytest.raises(UserError, match=r"told.txt: holds 2 lengths for 20 requests of .*trace.csv: one each"):
        check_predicted([str(trace)], [str(file)], 600)
    with pytest.raises(UserError, match=r"--predicted b.txt: give the --trace whose lengths these are"):
        check_predicted([str(trace)], [str(file), "b.txt"], 2)
