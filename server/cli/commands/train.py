"""`lengthwise train`: trains a length predictor."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from models.catalog.catalog import DEFAULT_EMBEDDER, DEFAULT_MODEL, EMBEDDER_MAX_TOKENS
from models.machine import usable_cores
from models.options import Count, Subparsers, add_groups, describe, option

# as models.proxy.task, without torch; tested
TASKS = ("regression-l1", "regression-mse", "classification", "ordinal-l1", "ordinal-mse", "binary", "ranking")


@dataclass(frozen=True, kw_only=True)
class Training:
    """The predictor to train, its data, and where to keep it."""

    files: tuple[Path, ...] = option((), positional=True, nargs="*", metavar="FILE")
    """JSONL: instruction, input, and length (tokens of the answer) or reference (an answer to count)"""
    predictor: Literal["forest", "proxy"] = option("forest")
    """forest: Magnus's, on sentence embeddings; proxy: SSJF's, a fine-tuned encoder"""
    journal: Path | None = option(None, "journal to train from (default: the server's)")
    tokenizer: str = option(DEFAULT_MODEL, metavar="NAME")
    """model that is to be served, whose tokenizer counts the tokens of texts in files"""
    embedder: str = option(DEFAULT_EMBEDDER, metavar="NAME")
    """sentence embedder of the forest, or encoder that the proxy is made of"""
    embedder_max_tokens: Count = option(EMBEDDER_MAX_TOKENS, "tokens of a text that it reads")
    output: Path | None = option(None, "where to keep the predictor (default: in the cache folder)", metavar="PATH")
    sample: Count | None = option(None, "rows of each file to use (default: all)")
    holdout: Annotated[float, Meta(ge=0.01, le=0.9)] = option(0.2, "share of rows to test with")
    held_out: Literal["rows", "tasks"] = option("rows")
    """what this is a share of: the rows of each instruction, or the instructions"""
    trees: Count = option(100, "trees of the forest")
    seed: int = option(0, "seed of the choice of rows and of training")
    json: bool = option(False, "print the result as JSON")


@dataclass(frozen=True, kw_only=True)
class ProxyTraining:
    """How a proxy is trained."""

    task: str = option(TASKS[0], "what it learns", choices=lambda: TASKS)
    compare_tasks: bool = option(False, "train and measure every task, keep --task's")
    epochs: Count = option(4, "epochs of phase 1 at most")
    proxy_max_tokens: Count | None = option(None, "tokens of a text that it reads, the last (default: 512)")


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("train", **describe(run))
    add_groups(parser, {"training": Training, "for --predictor proxy": ProxyTraining})
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train the length predictor from the journal or from files.

    It predicts how many tokens an answer will have, and is measured on rows that it was not trained with. Without
    files, a forest learns from the server's journal.

    Example: lengthwise train
    """
    from loadgen.result_file import require_writable
    from server.lengths.training import train

    if args.predictor == "forest":  # a proxy is a folder
        require_writable(args.output, "--output")
    print(train(args, usable_cores()), end="")
    return 0
