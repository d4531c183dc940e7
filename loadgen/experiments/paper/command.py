"""`lengthwise paper`: the experiments of the papers, measured beside published."""

from __future__ import annotations

import argparse
from dataclasses import replace

from loadgen.experiments.paper.options import Experiments
from models.flags import Subparsers, add_options, read_options
from models.options import options_of

PAPERS = ("magnus", "scls", "ssjf", "baton")


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "paper",
        help="repeat a paper's experiments in the simulator",
        description="Run the main comparison and the ablation of a paper from strategies by name, at the paper's scale "
        "on simulated executors, and print what was measured beside what the paper says, row by row. Ctrl-C leaves "
        "the tables and the file of what ran until then.",
    )
    parser.add_argument("paper", choices=PAPERS, help="whose experiments to run")
    add_options(parser, [one for one in options_of(Experiments) if one.name != "paper"])
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run a paper's experiments; returns the exit code: 1 when they cannot be run."""
    from loadgen.experiments.paper.run import run_paper  # numpy and the scheduler, which --help can do without

    asked = replace(read_options(args, Experiments), paper=args.paper)
    asked.refuse()
    return run_paper(asked)
