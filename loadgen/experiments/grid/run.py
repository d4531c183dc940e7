"""Simulates cells into a resumable file, and tabulates differences to FCFS."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple, TextIO

from rich.console import Console

from loadgen import console
from loadgen.bench.measures import measure_fairness
from loadgen.console import Table, show_table, table_console, tell_duration
from loadgen.experiments.grid import cells as grid
from loadgen.experiments.options import Arena, Grid
from loadgen.plot import render_page, require_report
from loadgen.result_file import require_writable, save
from loadgen.simulate.figures import measure_latencies, measure_slowdown
from loadgen.simulate.load import draw_arrivals
from loadgen.simulate.prediction import Predict, choose_prediction, read_prediction
from loadgen.simulate.report import draw_frontier, mark_best
from loadgen.simulate.run import GROUP_TOKENS
from loadgen.simulate.simulation import Served, fit_parts, prices_of, simulate
from loadgen.turns import collect
from loadgen.workload.lengths import RequestLengths, json_lines
from models.errors import INTERRUPTED
from models.progress import Bars
from scheduler.assembly import find_strategies
from scheduler.batching.batcher import BatchLimits
from scheduler.options import Scheduling
from scheduler.strategy import STRATEGIES, Strategy

KINDS = ("jct_ms", "ttft_ms", "normalized_latency_s", "slowdown")

Figures = Mapping[str, float]
Results = Mapping[grid.Cell, Mapping[str, Figures]]  # cell -> contender -> figures


def run_grid(asked: Grid) -> int:
    """Returns the exit code. Raises UserError."""
    contenders, seeds = grid.list_contenders(), range(asked.seed, asked.seed + asked.seeds)
    grid.check_traces(asked.trace, asked.num_prompts, seeds)
    cells = grid.all_cells(asked.trace, seeds, asked.num_prompts)[: asked.cells]
    shown = table_console()
    results, complete = play_all(asked.save_result, [*product(cells, contenders.values())], shown)
    show({cell: results[cell] for cell in cells if cell in results}, [*contenders], asked.num_prompts, shown)
    return 0 if complete else INTERRUPTED


def run_arena(asked: Arena) -> int:
    """Returns the exit code. Raises UserError."""
    further = find_strategies(asked.strategies)
    require_report(asked.report)
    grid.check_traces(asked.trace, asked.num_prompts, [asked.seed])
    loads = grid.find_loads(asked.trace, asked.num_prompts, asked.seed)
    runs = [(cell, STRATEGIES[name]) for cell in loads.values() for name in (*grid.list_players(cell), *further)]
    shown = table_console()
    results, complete = play_all(asked.save_result, runs, shown)
    played = {name: cell for name, cell in loads.items() if cell in results}
    for table in tabulate(results, played):
        shown.print(show_table(table) if table.rows else table.caption)
    if asked.report and played:
        save(asked.report, make_page(results, played).encode(), "--report")
    return 0 if complete else INTERRUPTED


BOOST = 30.0  # 1/γ of boost, in works of the mean request: chosen well for it
SECONDS = 1.5e-3  # of one core of an AMD EPYC (Zen 5) for a simulated request

Runs = Sequence[tuple[grid.Cell, Strategy]]


def estimate_seconds(results: Results, runs: Runs) -> float:
    return SECONDS * sum(cell.requests for cell, one in runs if one.name not in results.get(cell, {}))


def play_all(file: Path, runs: Runs, console: Console) -> tuple[Results, bool]:
    """Missing runs, appended to the file. Returns the results, and False after Ctrl-C. Raises UserError."""
    require_writable(file)
    results = read_results(file)
    console.print(tell_duration(estimate_seconds(results, runs)), highlight=False)
    with file.open("a") as lines, Bars() as bars:
        bars.begin(file.stem, len(runs))
        _, whole = collect(_play_missing(results, runs, lines), lambda _: bars.advance())
    lacking = {cell for cell, strategy in runs if strategy.name not in results.get(cell, {})}
    return {cell: found for cell, found in results.items() if cell not in lacking}, whole


def _play_missing(results: dict[grid.Cell, dict[str, Figures]], runs: Runs, lines: TextIO) -> Iterator[Figures]:
    for cell, strategy in runs:
        found = results.setdefault(cell, {})
        if strategy.name not in found:
            found[strategy.name] = play(cell, strategy)
            print(json.dumps([asdict(cell), strategy.name, found[strategy.name]]), file=lines, flush=True)
        yield found[strategy.name]


class Line(NamedTuple):
    """Of the file."""

    cell: grid.Cell
    strategy: str
    figures: dict[str, float]


def read_results(file: Path) -> dict[grid.Cell, dict[str, Figures]]:
    """Without an earlier version's, which have fewer figures, and others' strategies, which may change."""
    results: dict[grid.Cell, dict[str, Figures]] = {}
    own = {*STRATEGIES.own, *grid.list_contenders()}
    for _, (cell, name, found) in json_lines(file, Line) if file.exists() else ():
        if "p99_jct_ms" in found and name in own:
            results.setdefault(cell, {})[name] = found
    return results


def play(cell: grid.Cell, strategy: Strategy) -> Figures:
    """Latencies, longest wait, Jain's index of slowdowns, and the relative delay of the last request."""
    base, done = play_cell(cell, STRATEGIES[grid.BASE]), play_cell(cell, strategy)
    cost = grid.MACHINES[cell.machine].cost
    later = max(one.end - other.end for one, other in zip(done, base, strict=True))
    return measure_latencies(done, cost) | {
        "wait": max(one.started - one.arrival for one in done),
        "jain_fairness_index": measure_fairness([measure_slowdown(one, cost) for one in done]),
        "later": 1000 * later / measure_latencies(base)["p99_jct_ms"],
    }


@lru_cache(maxsize=2)  # with BASE's run, which each needs
def play_cell(cell: grid.Cell, strategy: Strategy) -> tuple[Served, ...]:
    lengths = grid.load_lengths(cell.load, cell.requests, cell.seed)
    served = measure_capacity(cell.machine, cell.load, cell.seed)
    load = draw_arrivals(lengths, cell.rho * served, cell.burstiness, cell.seed + 1)
    predict = read_prediction(cell.prediction).source(cell.seed)
    return _simulate(cell.machine, strategy, load, served, choose_prediction(strategy, predict))


@cache
def measure_capacity(machine: str, load: str, seed: int) -> float:
    """Requests/s that BASE serves of REQUESTS at once, without the last tenth."""
    lengths = [replace(one, arrival=0.0) for one in grid.load_lengths(load, grid.REQUESTS, seed)]
    ends = sorted(one.end for one in _simulate(machine, STRATEGIES[grid.BASE], lengths, 1.0, None))
    most = int(0.9 * len(ends))
    return most / ends[most - 1]


def _simulate(
    machine: str, strategy: Strategy, load: Sequence[RequestLengths], served: float, predict: Predict | None
) -> tuple[Served, ...]:
    """`served` requests/s give the mean time, for boost."""
    sizes = grid.MACHINES[machine]
    limits = BatchLimits.of(Scheduling(boost_gamma=served / BOOST), GROUP_TOKENS, sizes.max_num_seqs)
    return simulate(fit_parts(strategy, limits, sizes, prices_of(sizes)), sizes, load, predict=predict).requests


HEADS = ("", "JCT", "TTFT", "normalized latency", "slowdown", "median TTFT", "worst cells", "latest", "least req/s")
READING = (
    "Differences to first come, first served in %, geometric means over cells: mean / p99 / worst request. "
    "Worst cells: the largest difference of mean / p99 JCT. Latest: by how much a request ended later, at most, as a "
    "share of the p99 JCT of first come, first served. Normalized latency: JCT by tokens of the answer."
)


def show(results: Results, contenders: Sequence[str], requests: int, console: Console) -> None:
    console.print(READING)
    for title, cells in grid.group_cells([*results], requests).items():
        rows = tuple((name, *tell_differences([results[cell] for cell in cells], name)) for name in contenders)
        console.print(show_table(Table(f"{title}: {len(cells)} cells", HEADS, rows)))


def tell_differences(cells: Sequence[Mapping[str, Figures]], name: str) -> tuple[str, ...]:
    """The cells below HEADS, without the name."""
    typical, most, least = compare(cells, name)
    return (
        *(" / ".join(f"{typical[f'{part}_{kind}']:+.1f}" for part in ("mean", "p99", "p100")) for kind in KINDS),
        f"{typical['median_ttft_ms']:+.1f}",
        f"{most['mean_jct_ms']:+.1f} / {most['p99_jct_ms']:+.1f}",
        f"{max(one[name]['later'] for one in cells):.2f}",
        f"{least['request_throughput']:+.1f}",
    )


def compare(cells: Sequence[Mapping[str, Figures]], name: str) -> tuple[Figures, Figures, Figures]:
    """Percent, geometric mean, least and most; None for zeros."""
    base = grid.BASE
    ratios = {
        figure: [one[name][figure] / one[base][figure] for one in cells if one[base][figure] > 0 < one[name][figure]]
        for figure in cells[0][base]
    }
    typical, most, least = (
        {figure: 100 * (summary(found) - 1) for figure, found in ratios.items() if found}
        for summary in (geometric_mean, max, min)
    )
    return typical, most, least


TEMPLATE = Path(__file__).with_name("arena.html.j2")

CHANCE = 2.0  # deviations; one was 7 to 16 % between seeds of 100 requests

KEYS = (
    *("mean_jct_ms", "p99_jct_ms", "p100_jct_ms", "mean_normalized_latency_s", "mean_slowdown"),
    *("wait", "mean_ttft_ms", "request_throughput", "jain_fairness_index"),
)


def tabulate(results: Results, loads: Mapping[str, grid.Cell]) -> Iterator[Table]:
    """A table a load: BASE, then others beside it by rising mean; ▲ marks the frontier. No rows if all are alike."""
    for name, cell in loads.items():
        rows = join_alike(results[cell])
        weight = f"differences below {100 * CHANCE / cell.requests**0.5:.0f} % may be chance (--seed draws others)"
        note = weight if len(rows) > 1 else "all alike, as too few wait: give more --num-prompts"
        described = f"{cell.machine}, {Path(cell.load).stem}, ρ {cell.rho:g}, predictions {cell.prediction}"
        table = console.tabulate(f"{name}: {described}; {note}", [mark_best(rows)], KEYS)
        yield table if len(rows) > 1 else Table(table.caption, (), ())


def join_alike(found: Mapping[str, Figures]) -> Mapping[str, Sequence[Figures]]:
    alike: dict[tuple[float, ...], list[str]] = {}
    for name in sorted(found, key=lambda one: (one != grid.BASE, found[one]["mean_jct_ms"])):
        alike.setdefault(tuple(found[name][key] for key in KEYS), []).append(name)
    return {", ".join(names): [found[names[0]]] for names in alike.values()}


def make_page(results: Results, loads: Mapping[str, grid.Cell]) -> str:
    differ = [(name, results[cell]) for name, cell in loads.items() if len(join_alike(results[cell])) > 1]
    plots = [draw_frontier(name, {one: [run] for one, run in rows.items()}) for name, rows in differ]
    tables, title = list(tabulate(results, loads)), "The arena: every strategy on the same loads"
    return render_page(TEMPLATE, title=title, base=grid.BASE, tables=tables, plots=plots)
