"""The journal's SQLite file."""

import dataclasses
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.errors import UserError

VERSION = 7  # before 5 with a table of batches

STATEMENTS = (
    """CREATE TABLE IF NOT EXISTS requests (
  id INTEGER PRIMARY KEY AUTOINCREMENT, finished_at REAL NOT NULL, model TEXT NOT NULL, strategy TEXT NOT NULL,
  outcome TEXT NOT NULL, input_length INTEGER NOT NULL, user_input_length INTEGER NOT NULL,
  max_tokens INTEGER NOT NULL, generated INTEGER NOT NULL, predicted REAL, source TEXT, assigned REAL, started REAL,
  first_token REAL, latency REAL NOT NULL, runs INTEGER NOT NULL, replayed INTEGER NOT NULL, features BLOB NOT NULL,
  instruction TEXT, user_input TEXT)""",
    "CREATE INDEX IF NOT EXISTS requests_by_time ON requests (finished_at)",
    "DROP TABLE IF EXISTS batches",
)
ADDED = {
    **dict.fromkeys(("scope", "program"), "TEXT NOT NULL DEFAULT ''"),
    **dict.fromkeys(("promised", "asked", "coverage"), "REAL"),
}  # columns of later versions


def prepare(connection: sqlite3.Connection) -> None:
    """In one transaction. Raises sqlite3.DatabaseError for an unknown version."""
    with connection:
        if read_version(connection) == VERSION:
            return
        connection.execute("BEGIN IMMEDIATE")
        version = read_version(connection)
        if not 0 <= version <= VERSION:
            raise sqlite3.DatabaseError(f"its format is {version}, this program writes {VERSION}")
        for statement in STATEMENTS:
            connection.execute(statement)
        columns = {column for _, column, *_ in connection.execute("PRAGMA table_info(requests)")}
        for column in ADDED.keys() - columns:
            connection.execute(f"ALTER TABLE requests ADD COLUMN {column} {ADDED[column]}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def read_version(connection: sqlite3.Connection) -> int:
    """0 before tables exist. Raises sqlite3.Error."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


BUSY = 5.0  # seconds

BESIDE = ("", "-wal", "-shm")  # SQLite's files

DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})  # permanent errors


class JournalError(UserError):
    pass


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """Seconds after arrival, tokens; None if not reached."""

    finished_at: float  # Unix time
    model: str
    strategy: str
    outcome: str  # stop, length, repetition, error or cancelled
    input_length: int
    user_input_length: int
    max_tokens: int
    generated: int
    predicted: float | None
    source: str | None
    assigned: float | None
    started: float | None
    first_token: float | None
    latency: float
    runs: int = 1
    replayed: bool = False  # prescribed length
    features: tuple[float, ...] = ()
    instruction: str | None = None
    user_input: str | None = None  # --journal-prompts only
    scope: str = ""  # digest
    program: str = ""  # an agent's run
    promised: float | None = None  # end
    asked: float | None = None  # end that a client asked for
    coverage: float | None = None


CUT = frozenset({"length", "repetition"})  # truncated

ANSWERED = frozenset({"stop"}) | CUT


def own_file(path: Path) -> Path:
    """Or one beside a newer version's."""
    if not path.is_file():
        return path
    with suppress(sqlite3.Error), closing(_connect_to_read(path)) as connection:
        if read_version(connection) > VERSION:
            return path.with_name(f"{path.stem}.format-{VERSION}{path.suffix}")
    return path


def is_damage(error: sqlite3.Error) -> bool:
    """Not a lock or full disk."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGE


def connect(path: Path) -> sqlite3.Connection:
    """Private, for writing. Raises sqlite3.DatabaseError, OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    for suffix in BESIDE:  # by name: closing drops locks
        with suppress(FileNotFoundError, PermissionError):
            path.with_name(path.name + suffix).chmod(0o600)
    connection = sqlite3.connect(path, timeout=BUSY)
    try:
        prepare(connection)
        # durable commits
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def append(connection: sqlite3.Connection, entries: Sequence[RequestEntry]) -> None:
    names = [field.name for field in dataclasses.fields(RequestEntry)]
    rows = [[_stored(getattr(one, name)) for name in names] for one in entries]
    with connection:
        places = ", ".join("?" * len(names))
        connection.executemany(f"INSERT INTO requests ({', '.join(names)}) VALUES ({places})", rows)


def set_aside(path: Path) -> Path:
    """With companions; returns the new name. Raises OSError."""
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    for suffix in BESIDE:
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


def read(
    path: Path, *, since: float = 0.0, last: int | None = None, model: str | None = None, begun: bool = False
) -> Iterator[RequestEntry]:
    """Ended since `since`, Unix time, oldest first; the `last` of a model, with a token if `begun`. Raises
    JournalError."""
    path = _find(path)
    try:
        with closing(_connect_to_read(path)) as connection:
            columns = {column for _, column, *_ in connection.execute("PRAGMA table_info(requests)")}
            if not columns:
                raise JournalError(f"{path} is no journal: it has no table of requests")
            names = [field.name for field in dataclasses.fields(RequestEntry) if field.name in columns]
            listed = ", ".join(names)
            newest = f"SELECT id, {listed} FROM requests WHERE finished_at >= ? AND model = ifnull(?, model)"
            newest += " AND generated > 0 AND started IS NOT NULL" * begun
            query = f"SELECT {listed} FROM ({newest} ORDER BY id DESC LIMIT ?) ORDER BY id"
            for values in connection.execute(query, (since, model, -1 if last is None else last)):
                yield RequestEntry(*map(_restored, names, values))
    except sqlite3.Error as error:
        raise JournalError(f"{path} is no journal that can be read: {error}") from error


def prune(path: Path, *, before: float | None = None, keep: int | None = None) -> int:
    """Ended before, and all but `keep`; shrinks the file. Raises JournalError."""
    path = _find(path)
    newest = "SELECT id FROM requests ORDER BY id DESC LIMIT ?"
    outside = f"finished_at < ifnull(?, finished_at) OR id NOT IN ({newest})"
    try:
        with closing(connect(path)) as connection:
            with connection:
                every = -1 if keep is None else keep
                deleted = connection.execute(f"DELETE FROM requests WHERE {outside}", (before, every)).rowcount
            connection.execute("VACUUM")
    except (sqlite3.Error, OSError) as error:
        raise JournalError(f"{path} cannot be pruned: {error}") from error
    return deleted


def _find(path: Path) -> Path:
    own = own_file(path)
    if not own.is_file():
        raise JournalError(f"there is no journal at {own}: `lengthwise serve` writes one; name another with --journal")
    return own


def _connect_to_read(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY)


def _stored(value: object) -> object:
    return np.array(value, dtype="<f4").tobytes() if isinstance(value, tuple) else value


def _restored(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        return tuple(np.frombuffer(value, dtype="<f4").tolist())
    return bool(value) if name == "replayed" else value
