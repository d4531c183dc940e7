"""`lengthwise bench quality`: the arguments, the texts, the table and the errors. quality.py computes."""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.experiments.engine.command import MODEL, SEVERAL
from loadgen.flag_values import whole
from models.network.quantization import QUANTIZATIONS, Quantization

if TYPE_CHECKING:
    from loadgen.experiments.engine.quality import Quality
    from loadgen.workload.sample import Sample
    from models.progress import Bars
    from models.text import Text

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

KINDS = tuple(kind for kind in QUANTIZATIONS if kind != Quantization.NONE)
"""What float32 is compared with."""

MODULES = 12
"""Of the standard library, whose texts are read where no file is named."""

MIB = 2**20


def add_parser(subparsers: Subparsers) -> None:
    """Add the command below `bench`."""
    parser = subparsers.add_parser(
        "quality",
        help="compare how well a model foretells text with its weights in fewer bits",
        description="Perplexity of the same texts in float32, and with weights kept as --quantization says.",
    )
    parser.add_argument("model", nargs="?", default=MODEL, metavar="MODEL", help="as for serve (default: %(default)s)")
    parser.add_argument(
        "--quantization", nargs="+", default=KINDS, choices=KINDS, metavar="KIND",
        help=f"which to compare (default: {' '.join(KINDS)})",
    )  # fmt: skip
    parser.add_argument(
        "--dataset-path", type=Path, nargs="+", default=[], metavar="FILE",
        help="JSONL files as of the workload `jsonl`, an equal share of each (default: texts of the standard library)",
    )  # fmt: skip
    parser.add_argument("--num-texts", type=whole, default=64, metavar="N", help="texts, all files together")
    parser.add_argument("--max-len", type=SEVERAL, default=256, metavar="N", help="tokens that are read of a text")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the choice of texts")
    parser.set_defaults(run=run, computes=True)


def run(args: argparse.Namespace) -> int:
    """Compare and print; returns the exit code."""
    # These import torch, which --help can do without.
    from loadgen.console import table_console
    from models.progress import Bars

    with Bars() as bars:
        found = measure(args, bars)
    table_console().print(table(found))
    return 0


def measure(args: argparse.Namespace, bars: Bars) -> list[Quality]:
    """The quality in float32, then of each kind that was asked for. Raises what loading raises, and UserError."""
    from loadgen.experiments.engine.floor import weight_bytes
    from loadgen.experiments.engine.quality import Quality, perplexity
    from loadgen.experiments.engine.setup import hush
    from models.catalog.catalog import Catalog
    from models.network.loader import load
    from models.text import Text

    hush()
    folder = Catalog().resolve(args.model)
    texts = _tokens(args, Text.load(folder))
    found = []
    for kind in (Quantization.NONE.value, *args.quantization):
        bars.begin("float32" if kind == Quantization.NONE else kind, len(texts))
        model = load(folder, dtype="float32", quantization=kind)
        found.append(Quality(kind, perplexity(model, texts, bars.advance), weight_bytes(model.network)))
    return found


def _tokens(args: argparse.Namespace, text: Text) -> list[list[int]]:
    """What is foretold: request and answer of each sample, cut."""
    from loadgen.experiments.engine.quality import SHORTEST
    from models.errors import UserError

    whole = ("\n".join(filter(None, (one.instruction, one.input, one.reference))) for one in _samples(args))
    tokens = [text.encode(one)[: args.max_len] for one in whole]
    found = [one for one in tokens if len(one) >= SHORTEST]
    if not found:
        raise UserError("the texts have no two tokens")
    return found


def _samples(args: argparse.Namespace) -> list[Sample]:
    from itertools import islice

    from loadgen.workload.jsonl import read_jsonl
    from loadgen.workload.stdlib import read_material
    from loadgen.workload.tasks import samples

    rng = random.Random(args.seed)
    if not args.dataset_path:
        return list(islice(samples(read_material(rng, MODULES), rng), args.num_texts))
    share = -(-args.num_texts // len(args.dataset_path))
    files = [read_jsonl(path, need_reference=False) for path in args.dataset_path]
    return [one for rows in files for one in rng.sample(rows, min(share, len(rows)))]


def table(found: list[Quality]) -> str:
    """Lines for people; the first of `found` is what the others are compared with."""
    plain = found[0]
    lines = [f"{'weights':10} {'MiB a step':>10} {'perplexity':>10} {'change':>8}"]
    for one in found:
        name = "float32" if one is plain else one.quantization
        lines.append(
            f"{name:10} {one.weight_bytes / MIB:10.0f} {one.perplexity:10.3f} {one.change(plain) * 100:+7.2f}%"
        )
    return "\n".join(lines)
