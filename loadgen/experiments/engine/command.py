"""`lengthwise bench engine`: the arguments and the errors. bench.py runs it, report.py writes the tables."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.experiments.engine.job import ROWS
from loadgen.flag_values import whole, whole_from
from models.errors import UserError
from models.network.quantization import QUANTIZATIONS

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

MODEL = "smollm2-135m-instruct"
SEVERAL = whole_from(2)
"""Lengths in which a token follows another."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command below `bench`."""
    parser = subparsers.add_parser(
        "engine",
        help="compare this engine with transformers, in one process",
        description="In one process and interleaved rounds: this engine, transformers' generate on a static batch of "
        "the same prompts, transformers' continuous batching, and the least that memory bandwidth allows. "
        "Nothing else should run on the machine meanwhile.",
    )
    add_model_flags(parser, dtype="auto")
    parser.add_argument(
        "--rows", type=whole, nargs="+", metavar="N",
        help=f"rows to compare at (default: {' '.join(map(str, ROWS))}; with --ragged or --overhead: none)",
    )  # fmt: skip
    parser.add_argument("--input-len", type=whole, default=64, metavar="N", help="prompt tokens of a row")
    parser.add_argument("--output-len", type=SEVERAL, default=64, metavar="N", help="tokens to generate for a row")
    parser.add_argument("--rounds", type=whole, default=3, metavar="N", help="rounds that count, after one more")
    parser.add_argument(
        "--beside", nargs="+", choices=QUANTIZATIONS, default=(), metavar="KIND",
        help=f"also this engine with its weights kept so: {', '.join(QUANTIZATIONS)}",
    )  # fmt: skip
    parser.add_argument("--ragged", action="store_true", help="compare with requests of different lengths")
    parser.add_argument("--num-requests", type=whole, default=128, metavar="N", help="of --ragged")
    parser.add_argument("--min-len", type=SEVERAL, default=16, metavar="N", help="shortest prompt and output of it")
    parser.add_argument("--max-len", type=SEVERAL, default=256, metavar="N", help="longest prompt and output of it")
    parser.add_argument("--slots", type=whole, default=32, metavar="N", help="rows at a time in it")
    parser.add_argument("--overhead", action="store_true", help="time a step of 32 rows outside the forward pass")
    parser.add_argument("--save-result", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.set_defaults(run=run, computes=True)


def add_model_flags(parser: argparse.ArgumentParser, *, dtype: str) -> None:
    """What every benchmark in this process is asked."""
    parser.add_argument("model", nargs="?", default=MODEL, metavar="MODEL", help="as for serve (default: %(default)s)")
    dtypes = ("auto", "float32", "bfloat16", "float16")
    parser.add_argument("--dtype", default=dtype, choices=dtypes, help="as for serve (default: %(default)s)")
    parser.add_argument(
        "--quantization", default="auto", choices=("auto", *QUANTIZATIONS), help="as for serve (default: %(default)s)"
    )
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="as for serve")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the prompts")


def run(args: argparse.Namespace) -> int:
    """Compare and print; returns the exit code: 1 when something is wrong or this engine could not run."""
    # These import torch, which --help can do without.
    import orjson

    from loadgen.console import table_console
    from loadgen.experiments.engine.bench import run_bench
    from loadgen.experiments.engine.output import require_writable, write
    from loadgen.experiments.engine.report import results_json, show

    require_writable(args.save_result)
    results = run_bench(args)
    show(results, table_console())
    write(args.save_result, orjson.dumps(results_json(results), option=orjson.OPT_INDENT_2))
    if results.troubles:
        raise UserError(results.troubles[0])
    return 0
