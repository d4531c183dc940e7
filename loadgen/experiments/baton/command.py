"""`lengthwise bench baton`: the errors and the files. bench.py measures."""

from __future__ import annotations

import argparse

from loadgen.experiments.baton.options import BatonBench
from loadgen.result_file import require_writable, save, save_json
from models.errors import UserError
from models.flags import Subparsers, add_options, read_options
from models.options import options_of


def add_parser(subparsers: Subparsers) -> None:
    """Add the command below `bench`."""
    parser = subparsers.add_parser(
        "baton",
        help="measure the tables of the Baton paper on this machine",
        description="Run the query sets of the Baton paper through its four methods on this engine: completion times "
        "and throughput next to the paper's, and the same answers from all. In float32, as by default, answers are "
        "the same to the token; in shorter types rounding depends on the batch. Nothing else should run meanwhile.",
    )
    add_options(parser, options_of(BatonBench))
    parser.set_defaults(run=run, computes=True)


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    return run_options(read_options(args, BatonBench))


def run_options(asked: BatonBench) -> int:
    """Measure and print; returns the exit code. Raises UserError, also where float32 answers differ."""
    # These import torch, which --help can do without.
    from loadgen.console import table_console
    from loadgen.experiments.baton.bench import describe_setting, run_bench
    from loadgen.experiments.baton.report import make_page, show
    from loadgen.experiments.baton.results import table_json
    from loadgen.html.plot import require_drawing

    require_writable(asked.save_result)
    require_writable(asked.save_report, "--save-report")
    require_drawing(asked.save_report, "--save-report")
    subject, tables = run_bench(asked)
    show(tables, table_console())
    setting = describe_setting(asked, subject)
    save_json(asked.save_result, {"setting": setting, "tables": [table_json(table) for table in tables]})
    if asked.save_report:
        save(asked.save_report, make_page(tables, setting).encode(), "--save-report")
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
