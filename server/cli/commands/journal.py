"""`lengthwise journal`: show, export and prune the record (scheduler/journal/file.py)."""

from __future__ import annotations

import csv
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import orjson

from models.catalog.catalog import default_cache
from models.errors import UsageError
from models.options import Natural, Subparsers, add_command, describe, option
from server.cache_paths import journal_path

if TYPE_CHECKING:
    from scheduler.journal.file import RequestEntry

DURATIONS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
LENGTHS = ("instruction", "input", "length", "cut")  # of `lengthwise train`

Row = dict[str, object]


def _time_of(age: str) -> float:
    """Unix seconds."""
    if (match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", age)) is None:
        raise ValueError(f"{age!r} is not an age such as 30m, 12h or 7d")
    return time.time() - float(match[1]) * DURATIONS[match[2]]


@dataclass(frozen=True, kw_only=True)
class JournalSource:
    """The journal that is read or changed."""

    journal: Path | None = option(None, "the journal (default: the server's)")

    @property
    def path(self) -> Path:
        return journal_path(default_cache(), self.journal)


@dataclass(frozen=True, kw_only=True)
class Show(JournalSource):
    """Requests to print."""

    last: Natural = option(20, "how many", short=("-n",))


@dataclass(frozen=True, kw_only=True)
class Export(JournalSource):
    """Entries to write, and how."""

    format: Literal["csv", "jsonl"] = option("jsonl", "how they are written")
    what: Literal["requests", "lengths"] = option("requests")
    """lengths: texts and what became of them, as `lengthwise train` reads them"""
    since: float | None = option(None, "only what is younger than e.g. 30m, 12h, 7d", parse=_time_of, metavar="AGE")


@dataclass(frozen=True, kw_only=True)
class Prune(JournalSource):
    """Entries to delete."""

    older_than: float | None = option(None, "delete what is older than e.g. 12h, 30d", parse=_time_of, metavar="AGE")
    keep: Natural | None = option(None, "keep the newest N requests at most")


def add_parser(subparsers: Subparsers) -> None:
    """Show, export or prune the record of finished requests, which the length predictor learns from.

    Example: lengthwise journal show -n 5
    """
    parser = subparsers.add_parser("journal", **describe(add_parser))
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    add_command(actions, "show", Show, _show)
    add_command(actions, "export", Export, _export)
    add_command(actions, "prune", Prune, _prune)


def _show(options: Show) -> None:
    """Print the newest requests."""
    from rich.table import Table

    from loadgen.console import table_console
    from scheduler.journal.file import read

    heads = ("finished", "strategy", "outcome", "prompt", "predicted", "source", "generated", "first token", "latency")
    table = Table(*heads, title=str(options.path), title_justify="left")
    for entry in read(options.path, last=options.last):
        table.add_row(
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
    table_console().print(table)


def _export(options: Export) -> None:
    """Write entries as CSV or JSONL to standard output."""
    from scheduler.journal.file import RequestEntry, read

    entries = read(options.path, since=options.since or 0.0)
    names: Sequence[str] = LENGTHS
    rows: Iterable[Row] = _lengths(entries)
    if options.what == "requests":
        names, rows = [field.name for field in fields(RequestEntry)], map(asdict, entries)
    if options.format == "jsonl":
        for row in rows:
            sys.stdout.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE).decode())
        return
    writer = csv.DictWriter(sys.stdout, names)
    writer.writeheader()
    for row in rows:
        parts = {name: " ".join(map(str, value)) for name, value in row.items() if isinstance(value, tuple)}
        writer.writerow(row | parts)


def _lengths(entries: Iterable[RequestEntry]) -> Iterator[Row]:
    from scheduler.journal.file import ANSWERED, CUT, JournalError

    told = missed = 0
    for entry in entries:
        if entry.outcome not in ANSWERED or not entry.generated:
            continue
        if entry.instruction is None or entry.user_input is None:
            missed += 1
            continue
        told += 1
        values = (entry.instruction, entry.user_input, entry.generated, entry.outcome in CUT)
        yield dict(zip(LENGTHS, values, strict=True))
    if missed and not told:
        raise JournalError(f"none of {missed} answers has its texts: `lengthwise serve --journal-prompts` keeps them")


def _prune(options: Prune) -> None:
    """Delete old entries and give their space back."""
    from scheduler.journal.file import prune

    if options.older_than is None and options.keep is None:
        raise UsageError("say what to delete, with --older-than or --keep")
    print(f"{prune(options.path, before=options.older_than, keep=options.keep)} entries deleted")
