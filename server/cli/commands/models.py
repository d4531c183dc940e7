"""`lengthwise models`: the catalog's models."""

import argparse
import sys
from collections.abc import Sequence

import orjson

from models.catalog.catalog import Catalog, ModelStatus
from models.catalog.checkpoint import read_need
from models.options import Subparsers, describe
from server.cache_paths import fetch_model
from server.config import MemorySize, ServeConfig
from server.settings import add_configured, add_settings, read_settings


def add_parser(subparsers: Subparsers) -> None:
    """List, fetch and delete models.

    These can be served by name. A local folder, a .gguf file and a hub id (organisation/name[@revision]) can be served
    as well; the hub's have a cache of their own (`hf cache ls`).

    Example: lengthwise models
    """
    parser = subparsers.add_parser("models", **describe(add_parser))
    parser.set_defaults(run=_list, json=False, config=None)
    actions = parser.add_subparsers(title="actions", metavar="[ACTION]")
    listing = actions.add_parser("list", **describe(_list))
    listing.add_argument("--json", action="store_true", help="print the list as JSON")
    add_settings(listing, MemorySize)
    pull = add_configured(actions, "pull", ServeConfig, _pull, MemorySize)
    pull.add_argument("model", metavar="NAME", help="as for `serve`")
    remove = actions.add_parser("rm", **describe(_remove))
    remove.add_argument("model", metavar="NAME", help="as `lengthwise models` has it")
    remove.set_defaults(run=_remove)


def _list(args: argparse.Namespace) -> int:
    """List the models, their memory in numbers of --dtype (auto: 16 bits), and where they are; the default."""
    models, config = Catalog().known(), read_settings(ServeConfig, args)
    document = orjson.dumps(models, default=str, option=orjson.OPT_INDENT_2)
    print(document.decode() if args.json else _table(models, config))
    return 0


def _pull(config: ServeConfig) -> int:
    """Fetch or convert a model unless it is here, and print its folder; refuse one that does not fit."""
    folder = fetch_model(config)
    need = next((one.need for one in Catalog().known() if one.folder == folder), None) or read_need(folder)
    told = need.tell(_width(config), config.expected_slots, config.max_model_len)
    print(f"{config.model}: {told}", file=sys.stderr)
    print(folder)
    return 0


def _remove(args: argparse.Namespace) -> int:
    """Delete what the cache has of a model."""
    print(f"{Catalog().remove(args.model) / 1e6:.0f} MB are free again.")
    return 0


def _width(config: ServeConfig) -> int:
    return 4 if config.dtype == "float32" else 2


def _table(models: Sequence[ModelStatus], config: ServeConfig) -> str:
    head = ("NAME", "CACHED", "SIZE", "WEIGHTS", f"{config.expected_slots} SLOTS", "LICENCE", "FOLDER", "ABOUT")
    rows = [head, *(_row(model, config) for model in models)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _row(model: ModelStatus, config: ServeConfig) -> tuple[str, ...]:
    width, need = _width(config), model.need
    kept = config.expected_slots * (config.max_model_len or need.context) * need.kv * width
    memory = (f"{need.weights * width / 2**30:.1f} GiB", f"{kept / 2**30:.1f} GiB" if kept else "-")
    folder = str(model.folder) if model.cached else "-"
    size = f"{model.size / 1e6:.0f} MB"
    return model.name, "yes" if model.cached else "no", size, *memory, model.license or "-", folder, model.summary
