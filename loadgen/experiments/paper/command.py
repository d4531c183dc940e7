"""`lengthwise paper`: the experiments of the papers, measured beside published. run.py and engine.py do the work."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from loadgen.experiments.paper.options import Experiments, PaperOptions, RealEngine
from models.flags import Subparsers, add_groups, read_options
from server.process.openmp import spin_briefly

PAPERS = ("magnus", "scls", "ssjf", "baton")


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "paper",
        help="repeat a paper's experiments in the simulator, or on the real engine",
        description="Run the main comparison and the ablation of a paper from strategies by name, at the paper's scale "
        "on simulated executors, or with --real at a size that fits on the real engine here, and print what was "
        "measured beside what the paper says, row by row.",
    )
    parser.add_argument("paper", choices=PAPERS, help="whose experiments to run")
    add_groups(parser, {"experiments": Experiments, "on the real engine": RealEngine})
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run a paper's experiments; returns the exit code: 1 when they cannot be run."""
    asked = replace(read_options(args, PaperOptions), paper=args.paper)
    asked.refuse()
    if not asked.real:
        from loadgen.experiments.paper.run import run_paper  # numpy and the scheduler, which --help can do without

        return run_paper(asked)
    spin_briefly(os.environ)
    from loadgen.experiments.paper.engine import run_real_paper  # torch, which a simulation can do without

    return run_real_paper(asked)
