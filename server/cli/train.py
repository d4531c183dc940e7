"""`lengthwise train`: makes the forest or proxy that predicts how long answers become, and tells how well it does.

It owns the arguments and the output. Features and forests are scheduler/length's, proxies are models/'s.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from models.catalog.catalog import DEFAULT_EMBEDDER, DEFAULT_MODEL, EMBEDDER_MAX_TOKENS

TASKS = ("regression-l1", "regression-mse", "classification", "ordinal-l1", "ordinal-mse", "binary")
"""As models.proxy.task has them, which would import torch; a test compares."""

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "train",
        help="train the length predictor from the journal or from files",
        description="Train the predictor of how many tokens an answer will have, and measure it on rows that it was "
        "not trained with. Without files, a forest learns from the server's journal.",
    )
    parser.add_argument(
        "--predictor",
        choices=("forest", "proxy"),
        default="forest",
        help="forest: Magnus's, on sentence embeddings; proxy: SSJF's, a fine-tuned encoder (default: %(default)s)",
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="JSONL: instruction, input, and length (tokens of the answer) or reference (an answer to count)",
    )
    parser.add_argument("--journal", type=Path, metavar="FILE", help="journal to train from (default: the server's)")
    parser.add_argument(
        "--tokenizer",
        default=DEFAULT_MODEL,
        metavar="NAME",
        help="model that is to be served, whose tokenizer counts the tokens of texts in files (default: %(default)s)",
    )
    parser.add_argument(
        "--embedder",
        default=DEFAULT_EMBEDDER,
        metavar="NAME",
        help="sentence embedder of the forest, or encoder that the proxy is made of (default: %(default)s)",
    )
    parser.add_argument(
        "--embedder-max-tokens",
        type=_positive,
        default=EMBEDDER_MAX_TOKENS,
        metavar="N",
        help="tokens of a text that it reads (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=Path, metavar="PATH", help="where to keep the predictor (default: in the cache folder)"
    )
    parser.add_argument("--sample", type=_positive, metavar="N", help="rows of each file to use (default: all)")
    parser.add_argument(
        "--holdout", type=_share, default=0.2, metavar="N", help="share of rows to test with (default: %(default)s)"
    )
    parser.add_argument("--trees", type=_positive, default=100, metavar="N", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: %(default)s")
    _add_proxy_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def _add_proxy_flags(parser: argparse.ArgumentParser) -> None:
    proxy = parser.add_argument_group("for --predictor proxy")
    proxy.add_argument("--task", choices=TASKS, default=TASKS[0], help="what it learns (default: %(default)s)")
    proxy.add_argument("--compare-tasks", action="store_true", help="teach and measure every task, keep --task's")
    proxy.add_argument(
        "--epochs", type=_positive, default=4, metavar="N", help="epochs of phase 1 at most (default: %(default)s)"
    )
    proxy.add_argument(
        "--proxy-max-tokens",
        type=_positive,
        metavar="N",
        help="tokens of a text that it reads, the last (default: 512)",
    )


def run(args: argparse.Namespace) -> int:
    """Train, report and keep the predictor; returns the exit code."""
    from server.lengths.training import train

    print((_train_proxy if args.predictor == "proxy" else train)(args, len(os.sched_getaffinity(0))), end="")
    return 0


def _train_proxy(args: argparse.Namespace, cores: int) -> str:
    from server.lengths.proxy_training import (
        train_proxy,  # imports torch, which growing a forest from the journal does without
    )

    return train_proxy(args, cores)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.01 <= value <= 0.9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0.01 and 0.9")
    return value
