"""`lengthwise journal`: what the server has recorded, to look at, to take elsewhere, and to throw away.

It owns the arguments and the output; the file is scheduler/journal/file.py's.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from models.catalog.catalog import default_cache
from models.errors import UsageError
from server.process.cache_paths import journal_path

if TYPE_CHECKING:
    from scheduler.journal.file import BatchEntry, Entry, RequestEntry

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

DURATIONS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
FOREVER = 0.0
LENGTHS = ("instruction", "input", "length", "cut")
"""Fields of a file that `lengthwise train` reads."""

Row = dict[str, object]


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "journal",
        help="show, export or prune the record of finished requests",
        description="The journal of finished requests and batches, which the length predictor learns from.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = _action(actions, "show", "print the newest requests", _show)
    show.add_argument("-n", "--last", type=_whole, default=20, metavar="N", help="how many (default: %(default)s)")
    export = _action(actions, "export", "write everything as CSV or JSONL to standard output", _export)
    export.add_argument("--format", choices=("csv", "jsonl"), default="jsonl", help="default: %(default)s")
    export.add_argument(
        "--what",
        choices=("requests", "batches", "lengths"),
        default="requests",
        help="lengths: texts and what became of them, as `lengthwise train` reads them (default: %(default)s)",
    )
    export.add_argument("--since", type=_duration, metavar="AGE", help="only what is younger than e.g. 30m, 12h, 7d")
    prune = _action(actions, "prune", "delete old entries and give their space back", _prune)
    prune.add_argument("--older-than", type=_duration, metavar="AGE", help="delete what is older than e.g. 12h, 30d")
    prune.add_argument("--keep", type=_whole, metavar="N", help="keep the newest N requests and batches at most")


def _action(actions: Subparsers, name: str, help: str, work: object) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=help)
    parser.add_argument("--journal", type=Path, metavar="FILE", help="the journal (default: the server's)")
    parser.set_defaults(run=run, work=work)
    return parser


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say; returns the exit code."""
    args.work(args, journal_path(default_cache(), args.journal))
    return 0


def _show(args: argparse.Namespace, path: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from scheduler.journal.file import RequestEntry, read

    heads = ("finished", "strategy", "outcome", "prompt", "predicted", "source", "generated", "first token", "latency")
    table = Table(*heads, title=str(path), title_justify="left")
    for entry in read(path, RequestEntry, last=args.last):
        table.add_row(*_cells(entry))
    # Without a terminal no window's width limits the table.
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)


def _cells(entry: RequestEntry) -> tuple[str, ...]:
    return (
        f"{datetime.fromtimestamp(entry.finished_at):%Y-%m-%d %H:%M:%S}",
        entry.strategy,
        entry.outcome,
        str(entry.input_length),
        "-" if entry.predicted is None else f"{entry.predicted:.0f}",
        entry.source or "-",
        str(entry.generated),
        "-" if entry.first_token is None else f"{entry.first_token:.3f} s",
        f"{entry.latency:.3f} s",
    )


def _export(args: argparse.Namespace, path: Path) -> None:
    from scheduler.journal.file import BatchEntry, RequestEntry, read

    since = FOREVER if args.since is None else time.time() - args.since
    if args.what == "batches":
        _write(args.format, _names(BatchEntry), map(_fields, read(path, BatchEntry, since=since)))
    elif args.what == "requests":
        _write(args.format, _names(RequestEntry), map(_fields, read(path, RequestEntry, since=since)))
    else:
        _write(args.format, LENGTHS, _lengths(read(path, RequestEntry, since=since)))


def _lengths(entries: Iterable[RequestEntry]) -> Iterator[Row]:
    """Rows to train from; raises JournalError when there are answers and none of them with its texts."""
    from scheduler.journal.file import ANSWERED, CUT, JournalError

    told = missed = 0
    for entry in entries:
        if entry.outcome not in ANSWERED or not entry.generated:
            continue
        if entry.instruction is None or entry.user_input is None:
            missed += 1
            continue
        told += 1
        yield dict(
            zip(LENGTHS, (entry.instruction, entry.user_input, entry.generated, entry.outcome in CUT), strict=True)
        )
    if missed and not told:
        raise JournalError(f"none of {missed} answers has its texts: `lengthwise serve --journal-prompts` keeps them")


def _names(kind: type[RequestEntry] | type[BatchEntry]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _fields(entry: Entry) -> Row:
    return {name: getattr(entry, name) for name in _names(type(entry))}


def _write(format: str, names: Sequence[str], rows: Iterable[Row]) -> None:
    if format == "jsonl":
        for row in rows:
            sys.stdout.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE).decode())
        return
    writer = csv.DictWriter(sys.stdout, names)
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {name: " ".join(map(str, value)) if isinstance(value, tuple) else value for name, value in row.items()}
        )


def _prune(args: argparse.Namespace, path: Path) -> None:
    from scheduler.journal.file import prune

    if args.older_than is None and args.keep is None:
        raise UsageError("say what to delete, with --older-than or --keep")
    before = None if args.older_than is None else time.time() - args.older_than
    print(f"{prune(path, before=before, keep=args.keep)} entries deleted")


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age such as 30m, 12h or 7d")
    return float(match[1]) * DURATIONS[match[2]]
