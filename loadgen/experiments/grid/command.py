"""`lengthwise bench grid`: orders of waiting requests on machines and loads that none of them was made for."""

from __future__ import annotations

import argparse

from loadgen.experiments.grid.options import Grid
from models.errors import UserError
from models.flags import Subparsers, add_options, read_options
from models.options import options_of


def add_parser(subparsers: Subparsers) -> None:
    """Add the command below `bench`."""
    parser = subparsers.add_parser(
        "grid",
        help="compare orders of waiting requests in the simulator, on many machines and loads",
        description="Simulate each order on each machine with each load, from below to far above what is served, and "
        "with good, bad and misleading predictions, and print by how much it differs from first come, first served. "
        "It takes some minutes; a run that was broken off goes on where it was.",
    )
    add_options(parser, options_of(Grid))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Play, print and draw; returns the exit code. Raises UserError."""
    # These import numpy and the scheduler, which --help can do without.
    from loadgen.console import table_console
    from loadgen.experiments.grid.cells import all_cells
    from loadgen.experiments.grid.contenders import CONTENDERS
    from loadgen.experiments.grid.loads import check_predicted, check_traces
    from loadgen.experiments.grid.report import draw, show
    from loadgen.experiments.grid.run import run_grid
    from loadgen.html.plot import INSTALL, can_draw
    from loadgen.result_file import require_writable, save
    from models.progress import Bars

    asked = read_options(args, Grid)
    require_writable(asked.save_result)
    require_writable(asked.save_plot, "--save-plot")
    if asked.save_plot and not can_draw():
        raise UserError(f"--save-plot needs {INSTALL}")
    check_traces(asked.trace, asked.num_prompts, asked.seeds)
    check_predicted(asked.trace, asked.predicted, asked.num_prompts)
    cells = all_cells(asked.trace, asked.seeds, asked.predicted)
    with Bars() as bars:
        bars.begin("grid", len(cells) * len(CONTENDERS))
        results = run_grid(asked.save_result, cells, asked.num_prompts, bars.advance)
    show(results, table_console())
    if asked.save_plot:
        save(asked.save_plot, draw(results).encode(), "--save-plot")
    return 0
