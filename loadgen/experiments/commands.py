"""The experiments' commands: `lengthwise bench engine`, `gpu`, `quality` and `grid`, `paper` and `arena`.

What they need besides flags, torch, numpy or the scheduler, is imported when one runs: `--help` does without.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from loadgen.experiments.engine.options import EngineBench, GpuBench, QualityBench
from loadgen.experiments.paper.options import Experiments
from models.errors import INTERRUPTED, UserError
from models.options import (
    Count,
    Natural,
    Subparsers,
    add_command,
    add_options,
    describe,
    option,
    options_of,
    read_options,
)

PAPERS = ("magnus", "scls", "ssjf", "baton")


def add_benchmarks(subparsers: Subparsers) -> None:
    """Add the commands below `bench`."""
    add_command(subparsers, "engine", EngineBench, run_engine).set_defaults(computes=True)
    add_command(subparsers, "gpu", GpuBench, run_gpu).set_defaults(computes=True)
    add_command(subparsers, "quality", QualityBench, run_quality).set_defaults(computes=True)
    add_command(subparsers, "grid", Grid, run_grid)


def add_commands(subparsers: Subparsers) -> None:
    """Add `paper` and `arena` to the program's own commands."""
    parser = subparsers.add_parser("paper", **describe(run_paper))
    parser.add_argument("paper", choices=PAPERS, help="whose experiments to run")
    add_options(parser, [one for one in options_of(Experiments) if one.name != "paper"])
    parser.set_defaults(run=run_paper)
    add_command(subparsers, "arena", Arena, run_arena)


def run_paper(args: argparse.Namespace) -> int:
    """Repeat a paper's experiments in the simulator.

    Runs the main comparison and the ablation of a paper from strategies by name, at the paper's scale on simulated
    executors, and prints what was measured beside what the paper says, row by row. Ctrl-C leaves the tables and the
    file of what ran until then.

    Example: lengthwise paper scls
    """
    from loadgen.experiments.paper.run import run_paper

    asked = replace(read_options(args, Experiments), paper=args.paper)
    asked.refuse()
    return run_paper(asked)


def run_engine(asked: EngineBench) -> int:
    """Compare this engine with transformers, in one process.

    In interleaved rounds: this engine, transformers' generate on a static batch of the same prompts, and the least that
    memory bandwidth allows. Nothing else should run on the machine meanwhile.
    """
    from loadgen.console import table_console
    from loadgen.experiments.engine.bench import OURS, find_troubles, run_bench, show
    from loadgen.result_file import require_writable, save_json

    require_writable(asked.save_result)
    results = run_bench(asked)
    show(results, table_console())
    save_json(asked.save_result, results)
    if trouble := find_troubles(results).get(OURS):
        raise UserError(trouble)
    return 0


def run_gpu(asked: GpuBench) -> int:
    """Find out what this engine does on a GPU, in some minutes and without a download.

    On a network of random weights, of an 8B's sizes as far as memory goes: whether graphs, flash attention and masks
    give the same tokens, what a decode step takes to the floor of memory bandwidth, prefill, copies, and transformers'
    generate beside. Without a GPU a dry run of the same on a tiny network. The exit code is 1 where a part failed.
    """
    from loadgen.experiments.engine.gpu import run_first
    from loadgen.result_file import require_writable, save_json

    require_writable(asked.save_result)
    found = run_first(asked, partial(print, flush=True))
    save_json(asked.save_result, found)
    return int(any("failed" in part for part in found.values()))


def run_quality(asked: QualityBench) -> None:
    """Compare how well a model foretells text with its weights in fewer bits.

    Perplexity of the same texts in float32, and with weights kept as --quantization says.
    """
    from loadgen.experiments.engine.quality import run_bench

    run_bench(asked)


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """The loads that strategies are simulated on."""

    trace: tuple[str, ...] = option((), metavar="FILE")
    """traces, whose lengths are loads too: Azure's or BurstGPT's CSV, Mooncake's JSON lines"""
    seed: Natural = option(0)
    """seed of lengths and arrivals; other seeds play other requests of a trace"""


@dataclass(frozen=True, kw_only=True)
class Grid(Simulated):
    """The loads and contenders that are played, and the file that the outcome goes to."""

    save_result: Path = option(Path("grid.jsonl"))
    """a line a run is appended here; what the file holds already is not played again"""
    strategies: tuple[str, ...] = option((), commas=True, metavar="A,B")
    """some of the contenders by name, beside first come, first served (default: all)"""
    num_prompts: Count = option(600)
    """requests of a run, but for overloads of 100 and of 3,000"""
    cells: Count | None = option(None)
    """play this many cells, a fair sample (default: all)"""
    seeds: Count = option(1)
    """runs of each cell: --seed and those after it"""


@dataclass(frozen=True, kw_only=True)
class Arena(Simulated):
    """The loads and strategies that are played, and the file that the outcome goes to."""

    save_result: Path = option(Path("arena.jsonl"))
    """a line a run is appended here; what the file holds already is not played again"""
    num_prompts: Count = option(600)
    """requests of a run; two and a half times as many with 256 slots"""
    strategies: tuple[str, ...] = option((), commas=True, metavar="A,B,...")
    """PACKAGE:ROW or FILE.py:ROW, to play too"""
    report: Path | None = option(None)
    """write the page as HTML"""


def run_grid(asked: Grid) -> int:
    """Compare orders of waiting requests in the simulator, on many machines and loads.

    Simulates each order on each machine with each load, from below to far above what is served, and with good, bad and
    misleading predictions, and prints by how much it differs from first come, first served, by whether requests wait. A
    run that was broken off goes on where it was.
    """
    from loadgen.console import table_console
    from loadgen.experiments.grid.cells import BASE, all_cells, check_traces, list_contenders
    from loadgen.experiments.grid.run import play_all, show

    known = list_contenders()
    if unknown := [name for name in asked.strategies if name not in known]:
        raise UserError(f"--strategies: {', '.join(unknown)} is none of {', '.join(known)}")
    seeds = range(asked.seed, asked.seed + asked.seeds)
    check_traces(asked.trace, asked.num_prompts, seeds)
    chosen = dict.fromkeys((BASE, *asked.strategies)) if asked.strategies else known
    cells = all_cells(asked.trace, seeds, asked.num_prompts)[: asked.cells]
    console = table_console()
    results, complete = play_all(asked.save_result, [(cell, known[name]) for cell in cells for name in chosen], console)
    show({cell: results[cell] for cell in cells if cell in results}, tuple(chosen), asked.num_prompts, console)
    return 0 if complete else INTERRUPTED


def run_arena(asked: Arena) -> int:
    """Compare all strategies in the simulator.

    Simulates every strategy on the same loads, where few come and where too many do, with good and with misleading
    predictions, and prints completion times, times to the first token, normalized latencies (completion time by tokens
    of the answer), slowdowns, throughput, longest waits and fairness.

    Example: lengthwise arena
    """
    from loadgen.console import show_table, table_console
    from loadgen.experiments.grid.cells import check_traces, find_loads, list_players
    from loadgen.experiments.grid.run import make_page, play_all, tabulate
    from loadgen.plot import require_drawing
    from loadgen.result_file import require_writable, save
    from scheduler.assembly import find_strategies
    from scheduler.strategy import STRATEGIES

    further = find_strategies(asked.strategies)
    require_writable(asked.report, "--report")
    require_drawing(asked.report, "--report")
    check_traces(asked.trace, asked.num_prompts, [asked.seed])
    loads = find_loads(asked.trace, asked.num_prompts, asked.seed)
    runs = [(cell, STRATEGIES[name]) for cell in loads.values() for name in (*list_players(cell), *further)]
    console = table_console()
    results, complete = play_all(asked.save_result, runs, console)
    played = {name: cell for name, cell in loads.items() if cell in results}
    for table in tabulate(results, played):
        console.print(show_table(table))
    if asked.report and played:
        save(asked.report, make_page(results, played).encode(), "--report")
    return 0 if complete else INTERRUPTED
