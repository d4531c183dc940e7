"""`lengthwise bench grid`: orders of waiting requests on machines and loads that none of them was made for."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from models.errors import INTERRUPTED, UserError
from models.flags import Subparsers, add_options, read_options
from models.options import Count, option, options_of


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The loads and contenders that are played, and the file that the outcome goes to."""

    save_result: Path = option(
        Path("grid.jsonl"), "a line a run is appended here; what the file holds already is not played again"
    )
    strategies: tuple[str, ...] = option(
        (), "some of the contenders by name, beside first come, first served (default: all)", commas=True, metavar="A,B"
    )
    trace: tuple[str, ...] = option(
        (), "traces, whose lengths are loads too: Azure's or BurstGPT's CSV, Mooncake's JSON lines", metavar="FILE"
    )
    predicted: tuple[str, ...] = option(
        (),
        "predicted lengths of the first --trace, of the second and so on: one a line, by arrival of the requests",
        metavar="FILE",
    )
    num_prompts: Count = option(600, "requests of a run, but for overloads of 100 and of 3,000")
    cells: Count | None = option(None, "play this many cells, a fair sample (default: all)")
    seeds: Count = option(1, "runs of each cell, with other lengths and arrivals")
    save_plot: Path | None = option(None, "draw mean against p99, a plot a group of cells, as SVG")


def add_parser(subparsers: Subparsers) -> None:
    """Add the command below `bench`."""
    parser = subparsers.add_parser(
        "grid",
        help="compare orders of waiting requests in the simulator, on many machines and loads",
        description="Simulate each order on each machine with each load, from below to far above what is served, and "
        "with good, bad and misleading predictions, and print by how much it differs from first come, first served, "
        "by whether requests wait, and what is asked of the default. A run that was broken off goes on where it was.",
    )
    add_options(parser, options_of(Grid))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Play, print and draw; returns the exit code. Raises UserError."""
    # These import numpy and the scheduler, which --help can do without.
    from loadgen.console import table_console, tell_duration
    from loadgen.experiments.grid.cells import BASE, all_cells, list_contenders
    from loadgen.experiments.grid.loads import check_predicted, check_traces
    from loadgen.experiments.grid.report import draw, show
    from loadgen.experiments.grid.run import estimate_seconds, show_playing
    from loadgen.html.plot import INSTALL, can_draw
    from loadgen.result_file import require_writable, save

    asked, known = read_options(args, Grid), list_contenders()
    require_writable(asked.save_result)
    require_writable(asked.save_plot, "--save-plot")
    if asked.save_plot and not can_draw():
        raise UserError(f"--save-plot needs {INSTALL}")
    if unknown := [name for name in asked.strategies if name not in known]:
        raise UserError(f"--strategies: {', '.join(unknown)} is none of {', '.join(known)}")
    check_traces(asked.trace, asked.num_prompts, asked.seeds)
    check_predicted(asked.trace, asked.predicted, asked.num_prompts)
    chosen = dict.fromkeys((BASE, *asked.strategies)) if asked.strategies else known
    cells = all_cells(asked.trace, asked.seeds, asked.predicted, asked.num_prompts)[: asked.cells]
    runs = [(cell, known[name]) for cell in cells for name in chosen]
    console = table_console()
    console.print(tell_duration(estimate_seconds(asked.save_result, runs)), highlight=False)
    results, complete = show_playing("grid", asked.save_result, runs)
    played = {cell: results[cell] for cell in cells if cell in results}
    show(played, tuple(chosen), asked.num_prompts, console)
    if asked.save_plot and played:
        save(asked.save_plot, draw(played, tuple(chosen), asked.num_prompts).encode(), "--save-plot")
    return 0 if complete else INTERRUPTED
