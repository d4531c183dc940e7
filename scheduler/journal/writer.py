"""Records requests in its own thread; entries that cannot be written are dropped and counted."""

import logging
import math
import queue
import sqlite3
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from scheduler.journal.file import RequestEntry, append, connect, is_damage, own_file, set_aside

CHUNK = 1000  # deleted at once


@dataclass(frozen=True, slots=True)
class JournalBounds:
    """None: unbounded."""

    age: float | None = None  # seconds
    size: float | None = None  # bytes


def trim(connection: sqlite3.Connection, bounds: JournalBounds, now: float) -> None:
    """The file does not shrink. Raises sqlite3.Error."""
    pages = "pragma_page_count, pragma_freelist_count, pragma_page_size"
    used = f"SELECT (page_count - freelist_count) * page_size FROM {pages}"
    oldest = "SELECT id FROM requests WHERE finished_at < ? ORDER BY finished_at LIMIT ?"
    deleted = 1
    while deleted:
        is_full = bounds.size is not None and connection.execute(used).fetchone()[0] > bounds.size
        before = math.inf if is_full else -math.inf if bounds.age is None else now - bounds.age
        with connection:
            deleted = connection.execute(f"DELETE FROM requests WHERE id IN ({oldest})", (before, CHUNK)).rowcount


log = logging.getLogger(__name__)

QUEUE = 10_000  # entries

BATCH = 500  # entries

RETRY = 1.0  # seconds

INTERVAL = 60.0  # seconds

CLOSING_TIME = 5.0  # seconds


_Waiting = tuple[RequestEntry, Future[bool]]  # and whether it was written


class Journal:
    """Thread-safe."""

    def __init__(self, path: Path, *, limit: int = QUEUE, bounds: JournalBounds = JournalBounds()) -> None:
        self.path = path
        self._bounds = bounds
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(limit)
        self.written = 0
        self._dropped = 0  # by `put`
        self._failed = 0  # by the thread
        self._told = 0  # logged
        self._silent_until = 0.0
        self._closing = threading.Event()
        self._connection: sqlite3.Connection | None = None
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)

    @property
    def lost(self) -> int:
        return self._dropped + self._failed

    def start(self) -> None:
        self._thread.start()

    def put(self, entry: RequestEntry) -> Future[bool]:
        """Never blocks; results in whether it is on disk."""
        stored: Future[bool] = Future()
        try:
            self._queue.put_nowait((entry, stored))
        except queue.Full:
            self._dropped += 1
            stored.set_result(False)
        return stored

    def close(self) -> None:
        self._closing.set()
        with suppress(queue.Full):  # a hanging disk; the thread is a daemon
            self._queue.put(None, timeout=CLOSING_TIME)
        self._thread.join(CLOSING_TIME)
        if self._thread.is_alive():
            left = self._queue.qsize()
            log.error("the journal %s could not be written: more than %d entries are lost", self.path, left)

    def _write(self) -> None:
        ended = False
        while not ended:
            taken, ended = self._take()
            entries, before = [entry for entry, _ in taken], self.written
            while not self._store(entries):
                if self._closing.is_set():
                    self._failed += len(entries)
                    break
                self._closing.wait(RETRY)
            for _, stored in taken:
                if stored.set_running_or_notify_cancel():
                    stored.set_result(self.written > before)
            self._trim()
            if self.lost > self._told:
                self._complain("entries came faster than they could be written")
        if self._connection is not None:
            self._connection.close()

    def _take(self) -> tuple[list[_Waiting], bool]:
        taken: list[_Waiting | None] = []
        with suppress(queue.Empty):
            taken.append(self._queue.get(timeout=INTERVAL))
            while len(taken) < BATCH and taken[-1] is not None:
                taken.append(self._queue.get_nowait())
        return [one for one in taken if one is not None], None in taken

    def _store(self, entries: Sequence[RequestEntry]) -> bool:
        """False to retry."""
        try:
            if entries:
                self._append(entries)
        except (sqlite3.OperationalError, OSError) as error:
            self._complain(str(error), len(entries))
            return False
        except Exception:  # a bug, but serving goes on
            self._failed += len(entries)
            log.exception("the journal refused entries")
        return True

    def _append(self, entries: Sequence[RequestEntry]) -> None:
        try:
            append(self._open(), entries)
        except sqlite3.DatabaseError as error:
            self._close()
            if isinstance(error, sqlite3.OperationalError):  # full disk or lock
                raise
            if is_damage(error):
                told = "the journal %s was damaged (%s): it is now %s, and a new one begins"
                log.error(told, self.path, error, set_aside(self.path))
            append(self._open(), entries)
        self.written += len(entries)

    def _trim(self) -> None:
        if self._bounds != JournalBounds() and self.path.is_file():
            with suppress(sqlite3.Error, OSError):
                trim(self._open(), self._bounds, time.time())

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            own = own_file(self.path)
            if own != self.path:
                log.warning("%s is a newer version's journal: what ends is recorded in %s", self.path, own)
                self.path = own
            self._connection = connect(own)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error), closing(self._connection):
                self._connection.rollback()
            self._connection = None

    def _complain(self, reason: str, held: int = 0) -> None:
        if (now := time.monotonic()) >= self._silent_until:
            self._silent_until, self._told = now + INTERVAL, self.lost
            said = f"{self._queue.qsize() + held} entries wait, {self._told} are lost"
            log.error("the journal %s cannot be written: %s; %s", self.path, reason, said)
