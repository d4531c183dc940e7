"""The grid and the arena: cells and loads, figures by hand, and small ones from the flags to tables and a page."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from loadgen.experiments.grid import cells as grid, run
from loadgen.experiments.grid.cells import BASE, Cell
from loadgen.experiments.grid.run import Figures
from loadgen.experiments.options import Grid
from loadgen.simulate.figures import measure_slowdown
from loadgen.simulate.report import find_frontier
from loadgen.simulate.simulation import Served
from models.errors import UserError
from models.options import read_options
from scheduler.strategy import STRATEGIES, Strategy
from server.cli import main as cli
from tests.loadgen.workload.args import write_trace

ONE = Cell("small CPU", "bimodal", 1.3, requests=40)
OTHER = Cell("small CPU", "narrow", 1.0, 0.02, requests=40)


def test_every_machine_meets_every_load_once_a_seed() -> None:
    cells = grid.all_cells(("trace.csv",), range(2))
    overloads = 2 * len(grid.OVERLOADED[0]) * len(grid.OVERLOADED[1])
    assert len(set(cells)) == len(cells) == 2 * len(grid.GRID) * (8 * 5 + 6 * 5) + overloads
    assert {(cell.machine, cell.load) for cell in cells[:80]} >= {(machine, "bimodal") for machine in grid.GRID}
    assert grid.all_cells((), [0]) == grid.all_cells((), [0])


@pytest.mark.parametrize("load", [*grid.SHAPES, grid.TASKS])
def test_loads_are_repeatable_and_short_enough(load: str) -> None:
    lengths = grid.load_lengths(load, 50, 3)
    assert len(lengths) == 50 and lengths == grid.load_lengths.__wrapped__(load, 50, 3)
    assert max(max(one.input_length, one.output_length) for one in lengths) <= grid.LONGEST
    assert min(min(one.input_length, one.output_length) for one in lengths) >= 1


def test_a_tenth_of_the_log_normal_answers_holds_half_of_all_tokens() -> None:
    answers = np.sort([one.output_length for one in grid.load_lengths("log-normal", 2000, 0)])
    assert 0.4 < answers[-200:].sum() / answers.sum() < 0.6


def test_answers_as_in_servegen_have_a_heavy_tail_and_prompts_as_in_mooncake_reach_the_cut() -> None:
    answers = np.sort([one.output_length for one in grid.load_lengths("servegen", 2000, 0)])
    assert answers[-200:].sum() / answers.sum() > 0.3 and np.median(answers) < answers.mean() / 1.5
    prompts = [one.input_length for one in grid.load_lengths("mooncake", 2000, 0)]
    assert np.mean(np.array(prompts) == grid.LONGEST) > 0.9
    assert 300 < np.mean([one.output_length for one in grid.load_lengths("mooncake", 2000, 0)]) < 380


def test_cells_are_grouped_by_whether_a_rule_can_gain() -> None:
    cells = [
        Cell("H100", "bimodal", 1.0, 0.02),
        Cell("H100", "bimodal", 0.7),
        Cell("H100", "narrow", 1.6),
        Cell("H100", "bimodal", 1.3, prediction="inverted"),
        Cell("H100", "bimodal", 1.3, requests=100),
    ]
    assert {name: cells.index(found) for name, [found] in grid.group_cells(cells).items()} == {
        "a queue, predictions noisy:0.3": 0,
        "no queue": 1,
        "lengths alike": 2,
        "a queue, predictions inverted": 3,
        "an overload of 100 requests": 4,
    }


def test_figures_are_of_the_load_and_equal_when_measured_again() -> None:
    found = run.play(ONE, STRATEGIES["lengthwise"])
    assert found == run.play(ONE, STRATEGIES["lengthwise"])
    for kind in run.KINDS:
        assert 0 < found[f"mean_{kind}"] < found[f"p99_{kind}"] <= found[f"p100_{kind}"]
    assert found["mean_normalized_latency_s"] < found["mean_jct_ms"] and found["mean_slowdown"] > 1
    assert found["request_throughput"] <= 1.3 * run.measure_capacity(ONE.machine, ONE.load, 0)
    more = replace(ONE, rho=4.0, requests=100)
    assert run.play(more, STRATEGIES[BASE])["later"] == 0.0 < run.play(more, STRATEGIES["srpt"])["later"]


def figures_of(**changes: float) -> Figures:
    kinds = {f"{part}_{kind}": 10.0 for kind in run.KINDS for part in ("mean", "median", "p99", "p100")}
    return {**kinds, "request_throughput": 2.0, "later": 0.0, "wait": 0.0, **changes}


def test_differences_are_geometric_means_with_the_worst_cell() -> None:
    better = figures_of(mean_jct_ms=5.0, p99_jct_ms=11.2, request_throughput=2.2, later=0.3, wait=4.0)
    worse = figures_of(mean_jct_ms=10.4, p100_jct_ms=22.5, request_throughput=1.0, later=0.9)
    cells = list({ONE: {BASE: figures_of(), "a": better}, OTHER: {BASE: figures_of(), "a": worse}}.values())
    same, *_ = run.compare(cells, BASE)
    typical, most, least = run.compare(cells, "a")
    assert same["mean_jct_ms"] == 0.0
    assert [run.tell_differences(cells, name)[-2] for name in (BASE, "a")] == ["0.00", "0.90"], "the latest"
    assert typical["mean_jct_ms"] == pytest.approx(100 * ((0.5 * 1.04) ** 0.5 - 1))
    assert (most["mean_jct_ms"], most["p99_jct_ms"], most["p100_jct_ms"]) == pytest.approx((4.0, 12.0, 125.0))
    assert least["request_throughput"] == pytest.approx(-50.0)
    assert "wait" not in typical, "nothing waited under first come, first served"


def test_a_grid_goes_on_where_it_was_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = tmp_path / "grid.jsonl", io.StringIO()
    console, contenders = Console(file=out, width=200), grid.list_contenders()
    cells = replace(ONE, requests=12), replace(OTHER, requests=12)
    runs = [(cell, one) for cell in cells for one in contenders.values()]
    results, complete = run.play_all(file, runs, console)
    assert complete and {cell: set(found) for cell, found in results.items()} == dict.fromkeys(cells, set(contenders))
    lines = file.read_text().splitlines()
    assert len(lines) == len(runs) and run.estimate_seconds(results, runs) == 0.0
    others = ("my_order.py:MY_ORDER", "an-installed-order")
    file.write_text("\n".join(lines[0].replace('"baton-pd"', f'"{other}"') for other in others))
    assert run.read_results(file) == {}, "their code may be another now"
    file.write_text("\n".join(lines[:-3]) + "\n")
    assert run.estimate_seconds(run.read_results(file), runs) == pytest.approx(3 * 12 * run.SECONDS)

    def interrupt(cell: Cell, strategy: Strategy) -> Figures:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run, "play", interrupt)
        left, complete = run.play_all(file, runs, console)
    assert not complete and [*left] == [runs[0][0]], "the cell that is complete is told"
    assert run.play_all(file, runs, console) == (results, True)
    assert sorted(file.read_text().splitlines()) == sorted(lines)
    run.show(results, tuple(contenders), 12, console)
    assert "lengths alike: 1 cells" in out.getvalue() and "It takes some 0 s" in out.getvalue()


def test_the_command_plays_a_sample_of_the_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "grid.jsonl"
    flags = ("--num-prompts", "12", "--cells", "2", "--save-result", str(file))
    assert cli.main(["bench", "grid", *flags]) == 0
    shown = capsys.readouterr().out
    assert shown.index("It takes some ") < shown.index("srpt")
    assert len(file.read_text().splitlines()) == 2 * len(grid.list_contenders())


def test_a_trace_that_will_not_do_is_refused_before_the_first_run(tmp_path: Path) -> None:
    """It was found to be wrong only when its first cell was next, minutes later."""
    trace = write_trace(tmp_path / "some.csv", (f"2023-11-16 18:{minute}:00,5,5" for minute in range(10, 40)))
    with pytest.raises(UserError, match=r"has 15 answered requests from second 900 on, and 20 .* or fewer --seeds"):
        grid.check_traces([trace], 12, range(2))
    with pytest.raises(UserError, match="cannot be read"):
        grid.check_traces([str(tmp_path / "none.csv")], 12, [0])


def test_its_flags_may_begin_as_several_of_bench_do() -> None:
    """`bench` refused --trace as short for one of --trace-start, --trace-duration and --trace-speed."""
    args = cli.build_parser().parse_args(["bench", "grid", "--trace", "a.csv", "--trace", "b.csv"])
    assert read_options(args, Grid).trace == ("a.csv", "b.csv")


HERE = Cell("A100, scarce slots", "tasks", 1.6, requests=80)
NAMES = (BASE, "srpt", "scls", "sjf-oracle-continuous")


def test_every_row_of_the_table_plays_and_orders_differ_in_the_order_alone() -> None:
    assert set(grid.ALL) == {name for name, one in STRATEGIES.items() if one.quantization is None}
    assert {BASE, "lengthwise", "tie", "mlfq", "past-future"} <= set(grid.ORDERS) < set(grid.ALL)
    assert not {"vs", "ccb", "ils", "baton"} & set(grid.ORDERS)
    assert all(BASE in grid.list_players(cell) for cell in grid.LOADS.values()), "what all are compared with"
    assert {len(grid.list_players(cell)) for cell in grid.LOADS.values()} == {len(grid.ALL), len(grid.ORDERS)}
    assert {cell.requests for cell in grid.find_loads((), 80).values()} == {80, 200}


def test_another_seed_draws_every_load_anew() -> None:
    """Loads that nobody has tuned on: the seed is a flag."""
    usual, others = (grid.find_loads((), 80, seed).values() for seed in (0, 5))
    assert {one.seed for one in others} == {5}
    for one, other in zip(usual, others, strict=True):
        drawn, anew = (grid.load_lengths(cell.load, cell.requests, cell.seed) for cell in (one, other))
        assert len(drawn) == len(anew) and drawn != anew
    assert {cell.seed for cell in grid.all_cells((), range(5, 7))} == {5, 6}


def test_slowdown_is_what_requests_took_beside_alone() -> None:
    one = Served(5.0, 6.0, 7.0, 13.0, 100, 11, 1, None)
    alone = 0.02 + 100 * 9e-4 + 10 * (0.0405 + 8e-4 + 1.15e-6 * 105.5)
    assert measure_slowdown(one, grid.MACHINES["small CPU"].cost) == pytest.approx(8.0 / alone)


def test_the_frontier_is_what_none_beats_in_both() -> None:
    rows = {"a": (1.0, 9.0), "b": (2.0, 5.0), "worse": (2.0, 6.0), "c": (4.0, 4.0), "d": (5.0, 5.0)}
    assert find_frontier(rows) == {"a", "b", "c"}


def test_one_page_of_all(tmp_path: Path) -> None:
    lines = (f"2023-11-16 18:00:{second},50,{5 + 17 * second % 90}" for second in range(10, 40))
    trace = write_trace(tmp_path / "few.csv", lines)
    traced = grid.find_loads([trace], 80)[f"{trace}, too many come"]
    loads = {"too many come": HERE, "as in the trace": traced}
    runs = [(HERE, STRATEGIES[name]) for name in NAMES] + [(traced, STRATEGIES[name]) for name in NAMES[:2]]
    results, _ = run.play_all(tmp_path / "arena.jsonl", runs, Console(file=io.StringIO()))
    assert set(results[HERE]) == set(NAMES)
    rows = results[HERE]
    assert rows["srpt"]["mean_jct_ms"] < rows[BASE]["mean_jct_ms"] < rows["scls"]["mean_jct_ms"]
    table, other = run.tabulate(results, loads)
    assert "baton-pd" in str(other.rows[0][0]) and "few, ρ 1.6" in other.caption
    assert [row[0] for row in table.rows][-1] == "scls" and any(str(row[0]).startswith("▲") for row in table.rows)
    assert HERE.requests == 80 and "below 22 % may be chance" in table.caption
    page = run.make_page(results, loads)
    assert "<svg" in page and "<script>" in page and "too many come" in page


def alike(*names: str, **changes: float) -> dict[str, Figures]:
    return dict.fromkeys(names, figures_of(jain_fairness_index=0.5, **changes))


def test_strategies_with_the_same_figures_share_a_row() -> None:
    """Where few of 300 requests wait, 28 of 44 rows repeated another's figures."""
    found = {**alike("scls", mean_jct_ms=20.0), **alike("srpt", BASE), **alike("sjf", "fsp", mean_jct_ms=5.0)}
    (table,) = run.tabulate({HERE: found}, {"few": HERE})
    assert [row[0] for row in table.rows] == [f"{BASE}, srpt", "▲ sjf, fsp", "scls"]
    assert [row[1] for row in table.rows] == ["0.01", "0.005 -50%", "0.02 +100%"]


def test_a_load_on_which_all_are_alike_has_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each of 19 strategies said the same; as many names lay on one mark of the plot."""
    few = replace(HERE, load="log-normal")
    results = {HERE: {**alike(BASE), **alike("srpt", mean_jct_ms=5.0)}, few: alike(BASE, "srpt")}
    _, same = run.tabulate(results, loads := {"many": HERE, "few": few})
    assert not same.rows and "give more --num-prompts" in same.caption and "chance" not in same.caption
    page = run.make_page(results, loads)
    assert page.count("<svg") == 1 and page.count("<caption>") == 2 and page.count("<thead>") == 1
    assert cli.main(["arena", "--num-prompts", "1", "--save-result", str(tmp_path / "arena.jsonl")]) == 0
    _, found, wide = capsys.readouterr().out.partition("256 slots: H100, 256 slots, log-normal, ρ 0.9")
    assert found and wide.count("; all alike, as too few wait: give more --num-prompts") == 2 and "│" not in wide
