"""`lengthwise models`: what can be served by name, what is here already, and where.

It owns the arguments and the output. What a model is and how it is fetched is the catalog's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from models.catalog.catalog import Catalog, ModelStatus
from models.errors import UsageError
from models.flags import Subparsers, add_command
from models.options import option


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The form of the list."""

    path: str | None = option(None, "print the folder of this model only; fetch it first if need be", metavar="NAME")
    json: bool = option(False, "print the list as JSON")


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    add_command(
        subparsers,
        "models",
        Listing,
        run,
        help="list the known models, or fetch one and tell its folder",
        description="List the models that can be served by name. A local folder, a .gguf file and a hub id "
        "(organisation/name[@revision]) can be served as well.",
    )


def run(listing: Listing) -> None:
    """Print the list, or one folder."""
    if listing.path is not None and listing.json:
        raise UsageError("--path prints no list: leave out --json")
    catalog = Catalog()
    if listing.path is not None:
        print(catalog.resolve(listing.path))
    elif listing.json:
        print(orjson.dumps(catalog.known(), default=str, option=orjson.OPT_INDENT_2).decode())
    else:
        print(_table(catalog.known()))


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
