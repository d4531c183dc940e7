"""`lengthwise bench engine` and `lengthwise bench quality`: their flags. bench.py and quality.py measure."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from loadgen.experiments.engine.job import ROWS
from loadgen.result_file import require_writable, save_json
from models.errors import UserError
from models.flags import Subparsers, add_options, read_options
from models.network.quantization import QUANTIZATIONS, Quantization
from models.options import Count, Natural, option, options_of

Several = Annotated[int, Meta(ge=2)]
"""A length in which a token follows another."""

KINDS = tuple(kind for kind in QUANTIZATIONS if kind != Quantization.NONE)


@dataclass(frozen=True, kw_only=True)
class BenchedModel:
    """The model that a benchmark loads into this process."""

    model: str = option("smollm2-135m-instruct", "as for serve", positional=True)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option("auto", "as for serve")
    quantization: str = option("auto", "as for serve", choices=lambda: ("auto", *QUANTIZATIONS))
    device: Literal["auto", "cpu", "cuda"] = option("auto", "as for serve")
    seed: int = option(0, "seed of the prompts")


@dataclass(frozen=True, kw_only=True)
class EngineBench(BenchedModel):
    """What to compare with transformers."""

    rows: tuple[Count, ...] = option(
        (),
        f"rows to compare at (default: {' '.join(map(str, ROWS))}; with --ragged or --overhead: none)",
        nargs="+",
    )
    input_len: Count = option(64, "prompt tokens of a row")
    output_len: Several = option(64, "tokens to generate for a row")
    sampling: Literal["greedy", "defaults"] = option(
        "greedy", "how tokens are chosen; defaults: as the model's generation_config.json says"
    )
    rounds: Count = option(3, "rounds that count, after one more")
    beside: tuple[str, ...] = option(
        (), "also this engine with its weights kept so", nargs="+", choices=lambda: QUANTIZATIONS
    )
    ragged: bool = option(False, "compare with requests of different lengths")
    num_requests: Count = option(128, "with --ragged: requests")
    min_len: Several = option(16, "with --ragged: shortest prompt and output")
    max_len: Several = option(256, "with --ragged: longest prompt and output")
    slots: Count = option(32, "with --ragged: rows at a time")
    overhead: bool = option(False, "time a step of 32 rows outside the forward pass")
    save_result: Path | None = option(None, "write the figures as JSON")


@dataclass(frozen=True, kw_only=True)
class QualityBench:
    """Which texts to read, and with which weights."""

    model: str = option("smollm2-135m-instruct", "as for serve", positional=True)
    quantization: tuple[str, ...] = option(
        (), f"which to compare (default: {' '.join(KINDS)})", nargs="+", choices=lambda: KINDS
    )
    dataset_path: tuple[Path, ...] = option(
        (),
        "JSONL files as of the workload `jsonl`, an equal share of each (default: texts of the standard library)",
        nargs="+",
    )
    num_texts: Count = option(64, "texts, all files together")
    max_len: Several = option(256, "tokens that are read of a text")
    seed: Natural = option(0, "seed of the choice of texts")


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
