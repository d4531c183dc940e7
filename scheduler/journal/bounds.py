"""How much of a journal is kept while a server writes it, and deleting what is beyond. It opens no file."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import dataclass

from scheduler.journal.file import TABLES

CHUNK = 1000
"""Entries of a kind that are deleted in one transaction while a server writes."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a server keeps; None for no bound."""

    age: float | None = None
    """Seconds since an entry ended."""
    size: float | None = None
    """Bytes of the file."""


def trim(connection: sqlite3.Connection, bounds: Bounds, now: float) -> None:
    """Delete the oldest entries until the others are within the bounds; `now` in seconds since 1970.

    The space is used again, but not given back. Raises sqlite3.Error.
    """
    while _delete_oldest(connection, bounds, now):
        pass


def _delete_oldest(connection: sqlite3.Connection, bounds: Bounds, now: float) -> int:
    """Delete CHUNK entries of each kind at most that are out of the bounds; returns how many."""
    before = -math.inf if bounds.age is None else now - bounds.age
    if bounds.size is not None and _used(connection) > bounds.size:
        before = math.inf
    if before == -math.inf:
        return 0
    oldest = "SELECT id FROM {0} WHERE finished_at < ? ORDER BY finished_at LIMIT ?"
    delete = f"DELETE FROM {{0}} WHERE id IN ({oldest})"
    with connection:
        return sum(connection.execute(delete.format(table), (before, CHUNK)).rowcount for table in TABLES.values())


def _used(connection: sqlite3.Connection) -> int:
    """Bytes of a file that hold anything."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)
