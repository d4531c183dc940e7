"""`lengthwise models`: what can be served by name, what is here already, and where.

It owns the arguments and the output. What a model is and how it is fetched is the catalog's business.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

import orjson

from models.catalog.catalog import Catalog, ModelStatus

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "models",
        help="list the known models, or fetch one and tell its folder",
        description="List the models that can be served by name. A local folder, a .gguf file and a hub id "
        "(organisation/name[@revision]) can be served as well.",
    )
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument("--path", metavar="NAME", help="print the folder of this model only; fetch it first if need be")
    wanted.add_argument("--json", action="store_true", help="print the list as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say; returns the exit code."""
    print(_output(Catalog(), args))
    return 0


def _output(catalog: Catalog, args: argparse.Namespace) -> str:
    if args.path is not None:
        return str(catalog.resolve(args.path))
    known = catalog.known()
    if args.json:
        return orjson.dumps(known, default=str, option=orjson.OPT_INDENT_2).decode()
    return _table(known)


def _table(models: Sequence[ModelStatus]) -> str:
    head = ("NAME", "KIND", "CACHED", "SIZE", "FOLDER", "ABOUT")
    rows = [head, *(_row(model) for model in models)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _row(model: ModelStatus) -> tuple[str, ...]:
    about = ", ".join(part for part in (model.summary, model.license) if part)
    folder = str(model.folder) if model.cached else "-"
    return model.name, model.kind, "yes" if model.cached else "no", f"{model.size / 1e6:.0f} MB", folder, about
