"""`lengthwise paper`: the experiments of the papers, measured beside published.

It owns the flags and the errors; run.py does the work.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

PAPERS = ("magnus", "scls", "ssjf", "baton")


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "paper",
        help="repeat a paper's experiments in the simulator",
        description="Run the main comparison and the ablation of a paper from strategies by name, at the paper's scale "
        "on simulated executors, and print what was measured beside what the paper says, row by row.",
    )
    parser.add_argument("paper", choices=PAPERS, help="whose experiments to run")
    parser.add_argument(
        "--experiments",
        type=_names,
        metavar="A,B,...",
        help="some of them by name (default: all; a wrong name lists them)",
    )
    parser.add_argument(
        "--scale",
        type=_positive,
        default=1.0,
        metavar="X",
        help="share of the paper's size: executors and rates (magnus, scls), runs (ssjf), queries (baton) (default: 1)",
    )
    parser.add_argument(
        "--seed", type=_natural, default=0, metavar="N", help="of lengths, arrivals and errors (default: 0)"
    )
    parser.add_argument(
        "--duration", type=_positive, metavar="S", help="seconds of arrivals (default: the paper's; baton has none)"
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
        type=_positive,
        default=1.0,
        metavar="X",
        help="what the prompts' lengths are multiplied with, for loads whose prompts are shorter than the trace's "
        "(default: 1)",
    )
    parser.add_argument("--save-result", type=Path, metavar="FILE", help="write all runs and rows as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run a paper's experiments; returns the exit code: 1 when they cannot be run."""
    from loadgen.paper.run import PaperError, run_paper  # numpy and the scheduler, which --help can do without

    try:
        return run_paper(args)
    except PaperError as error:
        print(f"lengthwise: error: {error}", file=sys.stderr)
        return 1


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _rates(text: str) -> tuple[float, ...]:
    rates = tuple(_positive(part) for part in text.split(",") if part.strip())
    if not rates:
        raise argparse.ArgumentTypeError("names no rate")
    return rates


def _positive(text: str) -> float:
    return _number(text, lambda value: value > 0, "a number above 0")


def _natural(text: str) -> int:
    return int(_number(text, lambda value: value >= 0 and value.is_integer(), "a whole number of at least 0"))


def _number(text: str, fits: Callable[[float], bool], what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and fits(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value
