"""`lengthwise bench engine` and `lengthwise bench quality`. bench.py and quality.py measure."""

from __future__ import annotations

import argparse

from loadgen.experiments.engine.options import EngineBench, QualityBench
from loadgen.result_file import require_writable, save_json
from models.errors import UserError
from models.flags import Subparsers, add_options, read_options
from models.options import options_of


def add_parser(subparsers: Subparsers) -> None:
    """Add the commands below `bench`."""
    engine = subparsers.add_parser(
        "engine",
        help="compare this engine with transformers, in one process",
        description="In one process and interleaved rounds: this engine, transformers' generate on a static batch of "
        "the same prompts, transformers' continuous batching, and the least that memory bandwidth allows. "
        "Nothing else should run on the machine meanwhile.",
    )
    add_options(engine, options_of(EngineBench))
    engine.set_defaults(run=run, computes=True)
    quality = subparsers.add_parser(
        "quality",
        help="compare how well a model foretells text with its weights in fewer bits",
        description="Perplexity of the same texts in float32, and with weights kept as --quantization says.",
    )
    add_options(quality, options_of(QualityBench))
    quality.set_defaults(run=run_quality, computes=True)


def run(args: argparse.Namespace) -> int:
    """Compare and print; returns the exit code. Raises UserError, also when this engine could not run."""
    # These import torch, which --help can do without.
    from loadgen.console import table_console
    from loadgen.experiments.engine.bench import run_bench
    from loadgen.experiments.engine.report import results_json, show

    options = read_options(args, EngineBench)
    require_writable(options.save_result)
    results = run_bench(options)
    show(results, table_console())
    save_json(options.save_result, results_json(results))
    if results.troubles:
        raise UserError(results.troubles[0])
    return 0


def run_quality(args: argparse.Namespace) -> int:
    """Compare and print; returns the exit code."""
    from loadgen.experiments.engine.quality import run_bench

    run_bench(read_options(args, QualityBench))
    return 0
