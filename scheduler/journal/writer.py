"""The journal: every finished request and batch in an SQLite file, written by a thread of its own.

It never stands in the way of serving: entries that cannot be written are dropped and counted. It knows no strategy;
the tables are in file.py.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from scheduler.journal.file import Entry, append, connect, set_aside

log = logging.getLogger(__name__)

QUEUE = 10_000
"""Entries that wait to be written; more are dropped."""

BATCH = 500
"""Entries in one transaction at most."""

CLOSING_TIME = 5.0
"""Seconds that closing waits for the last entries."""


class Journal:
    """`put` may be called from any thread. What is written survives the end of the process, however it comes."""

    def __init__(self, path: Path, *, limit: int = QUEUE) -> None:
        self.path = path
        self._queue: queue.Queue[Entry | None] = queue.Queue(limit)
        self._written = 0
        self._dropped = 0  # for want of room in the queue; counted by `put`
        self._failed = 0  # for want of a file that can be written; counted by the thread
        self._said: set[str] = set()
        self._connection: sqlite3.Connection | None = None
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)

    @property
    def written(self) -> int:
        """Entries that are in the file."""
        return self._written

    @property
    def lost(self) -> int:
        """Entries that were dropped, because the queue was full or the file could not be written."""
        return self._dropped + self._failed

    def start(self) -> None:
        self._thread.start()

    def put(self, entry: Entry) -> None:
        """Note a finished request or batch; never blocks and never raises."""
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write the entries that wait and end the thread."""
        with suppress(queue.Full):  # a disk that hangs; the thread does not keep the process
            self._queue.put(None, timeout=CLOSING_TIME)
        self._thread.join(CLOSING_TIME)

    def _write(self) -> None:
        ended = False
        while not ended:
            entries, ended = self._take()
            if entries:
                self._store(entries)
        if self._connection is not None:
            self._connection.close()

    def _take(self) -> tuple[list[Entry], bool]:
        """The entries that wait, at least one; and whether the last was among them."""
        entries: list[Entry] = []
        entry = self._queue.get()
        while entry is not None:
            entries.append(entry)
            if len(entries) == BATCH:
                return entries, False
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return entries, False
        return entries, True

    def _store(self, entries: Sequence[Entry]) -> None:
        try:
            self._append(entries)
        except (sqlite3.Error, OSError) as error:
            self._failed += len(entries)
            self._say(f"the journal {self.path} cannot be written ({error}): what ends is not recorded meanwhile")
        except Exception:  # an entry that the tables cannot hold: a bug, but no reason to stop serving
            self._failed += len(entries)
            log.exception("the journal refused entries")

    def _append(self, entries: Sequence[Entry]) -> None:
        try:
            append(self._open(), entries)
        except sqlite3.DatabaseError as error:
            self._close()
            if isinstance(error, sqlite3.OperationalError):  # a full disk, a lock: the file itself is sound
                raise
            aside = set_aside(self.path)
            self._say(f"the journal {self.path} was damaged ({error}): it is now {aside}, and a new one begins")
            append(self._open(), entries)
        self._written += len(entries)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect(self.path)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error), closing(self._connection):
                self._connection.rollback()
            self._connection = None

    def _say(self, line: str) -> None:
        """Log a line once: a full disk would fill the log next."""
        if line not in self._said:
            self._said.add(line)
            log.error("%s", line)
