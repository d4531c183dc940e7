"""`lengthwise paper`: the experiments of the papers, measured beside published.

It owns the flags and the errors; run.py does the work, or engine.py on the real engine.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.experiments.paper.options import refuse
from loadgen.flag_values import natural, positive, whole
from server.process.openmp import spin_briefly

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

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
    _add_experiments(parser)
    _add_load(parser)
    parser.add_argument("--save-result", type=Path, metavar="FILE", help="write all runs and rows as JSON")
    _add_real(parser.add_argument_group("on the real engine"))
    parser.set_defaults(run=run)


def _add_experiments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paper", choices=PAPERS, help="whose experiments to run")
    parser.add_argument(
        "--experiments",
        type=_names,
        metavar="A,B,...",
        help="some of them by name (default: all; a wrong name lists them)",
    )
    parser.add_argument(
        "--scale",
        type=positive,
        default=1.0,
        metavar="X",
        help="share of the paper's size: executors and rates (magnus, scls), runs (ssjf), queries (baton) (default: 1)",
    )
    parser.add_argument(
        "--seed", type=natural, default=0, metavar="N", help="of lengths, arrivals and errors (default: 0)"
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--duration",
        type=positive,
        metavar="S",
        help="seconds of arrivals (default: the paper's; with --real 30, for ssjf 30 requests; baton has none)",
    )
    parser.add_argument(
        "--rates",
        type=_rates,
        metavar="A,B,...",
        help="requests a second on the paper's whole machine: for magnus, scls's main experiments and ssjf's rates",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="lengths from an Azure LLM inference CSV (default: the built-in tasks for magnus, drawn lengths for "
        "scls and ssjf; baton's are always drawn)",
    )
    parser.add_argument(
        "--input-scale",
        type=positive,
        default=1.0,
        metavar="X",
        help="what the prompts' lengths are multiplied with, for loads whose prompts are shorter than the trace's "
        "(default: 1)",
    )


def _add_real(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--real",
        action="store_true",
        help="serve for real, in this process: settings of the engine come from the environment, as for `lengthwise "
        "serve`, and from the flags below; `lengthwise profile` with the same settings comes first. Nothing else "
        "should run on the machine meanwhile",
    )
    group.add_argument("--model", metavar="MODEL", help="as for serve")
    group.add_argument(
        "--executors",
        type=whole,
        metavar="N",
        help="executor threads (default: one a CUDA device; on a CPU, whose cores they share, 2 for scls, else 1)",
    )
    group.add_argument(
        "--length-scale",
        type=positive,
        metavar="X",
        help="what the paper's lengths are multiplied with (default: 1/8; baton: 1/16, its short queries 1/2)",
    )
    group.add_argument(
        "--loads",
        type=_rates,
        metavar="A,B,...",
        help="rates, as multiples of what the paper's first baseline serves here (default: 2,6 for magnus, 2,4 for "
        "scls, 4,16 for ssjf)",
    )
    group.add_argument(
        "--rounds", type=whole, metavar="N", help="runs of each, with other requests; means are shown (default: 1)"
    )


def run(args: argparse.Namespace) -> int:
    """Run a paper's experiments; returns the exit code: 1 when they cannot be run."""
    refuse(args)
    if not args.real:
        from loadgen.experiments.paper.run import run_paper  # numpy and the scheduler, which --help can do without

        return run_paper(args)
    spin_briefly(os.environ)
    from loadgen.experiments.paper.engine import run_real_paper  # torch, which a simulation can do without

    return run_real_paper(args)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _rates(text: str) -> tuple[float, ...]:
    rates = tuple(positive(part) for part in text.split(",") if part.strip())
    if not rates:
        raise argparse.ArgumentTypeError("names no rate")
    return rates
