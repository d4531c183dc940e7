"""`lengthwise bench baton`: the arguments, the errors and the files. bench.py runs it."""

from __future__ import annotations

import argparse
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.experiments.engine.command import add_model_flags
from loadgen.flag_values import whole
from models.errors import UserError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

SCALE = Fraction(1, 16)
SHORT_SCALE = Fraction(1, 2)


def add_parser(subparsers: Subparsers) -> None:
    """Add the command below `bench`."""
    parser = subparsers.add_parser(
        "baton",
        help="measure the tables of the Baton paper on this machine",
        description="Run the query sets of the Baton paper through its four methods on this engine: completion times "
        "and throughput next to the paper's, and the same answers from all. In float32, as by default, answers are "
        "the same to the token; in shorter types rounding depends on the batch. Nothing else should run meanwhile.",
    )
    add_model_flags(parser, dtype="float32")
    parser.add_argument(
        "--target", type=int, nargs="+", default=[1, 2], choices=(1, 2), help="query sets (default: both)"
    )
    parser.add_argument(
        "--scale", type=scale, default=SCALE, metavar="X",
        help="what the paper's lengths are multiplied with in Target-1 (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--short-scale",
        type=scale,
        default=SHORT_SCALE,
        metavar="X",
        help="the same in Target-2 (default: %(default)s)",
    )
    parser.add_argument(
        "--num-queries", type=whole, default=60, metavar="N",
        help="queries of Target-1; the paper's are 120 (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--num-short-queries", type=whole, default=30, metavar="N",
        help="queries of Target-2, as in the paper (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=whole, default=1, metavar="N", help="runs of each; medians are shown")
    parser.add_argument("--save-result", type=Path, metavar="FILE", help="write figures and curves as JSON")
    parser.add_argument("--save-report", type=Path, metavar="FILE", help="write tables and plots as HTML")
    parser.set_defaults(run=run, computes=True)


def scale(text: str) -> Fraction:
    """A positive number such as 0.25 or 1/16."""
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 0.25 or 1/16") from None
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return value


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code: 1 when something is wrong, or float32 answers differ."""
    # These import torch, which --help can do without.
    import orjson

    from loadgen.console import table_console
    from loadgen.experiments.baton.bench import run_bench, setting
    from loadgen.experiments.baton.report import make_page, show
    from loadgen.experiments.baton.results import table_json
    from loadgen.experiments.engine.output import require_writable, write
    from loadgen.html.plot import INSTALL, can_draw

    require_writable(args.save_result)
    require_writable(args.save_report)
    if args.save_report and not can_draw():
        raise UserError(f"--save-report needs {INSTALL}")
    subject, tables = run_bench(args)
    show(tables, table_console())
    about = setting(args, subject)
    result = {"setting": about, "tables": [table_json(table) for table in tables]}
    write(args.save_result, orjson.dumps(result))
    write(args.save_report, make_page(tables, about).encode())
    print_differences(sum(table.different_answers for table in tables), subject.dtype)
    return 0


def print_differences(different: int, dtype: str) -> None:
    """Print how many answers differ between methods; raises UserError where none may."""
    if not different:
        print("Every method gave the same answers.")
        return
    if dtype == "float32":
        raise UserError(f"{different} answers differ from Benchmark's, which must not be")
    print(f"{different} answers differ from Benchmark's: {dtype} rounds by the batch. --dtype float32 tells more.")
