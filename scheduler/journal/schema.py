"""The journal's tables, and taking over a file of an earlier version. It opens no file."""

from __future__ import annotations

import sqlite3

VERSION = 4
"""Raise it when a table changes. Version 2 had columns of batches that nothing reads any more; they are left alone."""

TABLES = (
    """CREATE TABLE IF NOT EXISTS requests (
  id INTEGER PRIMARY KEY AUTOINCREMENT, finished_at REAL NOT NULL, model TEXT NOT NULL, strategy TEXT NOT NULL,
  outcome TEXT NOT NULL, input_length INTEGER NOT NULL, user_input_length INTEGER NOT NULL,
  max_tokens INTEGER NOT NULL, generated INTEGER NOT NULL, predicted REAL, source TEXT, assigned REAL, started REAL,
  first_token REAL, latency REAL NOT NULL, runs INTEGER NOT NULL, replayed INTEGER NOT NULL, features BLOB NOT NULL,
  instruction TEXT, user_input TEXT, scope TEXT NOT NULL DEFAULT '')""",
    "CREATE INDEX IF NOT EXISTS requests_by_time ON requests (finished_at)",
    """CREATE TABLE IF NOT EXISTS batches (
  id INTEGER PRIMARY KEY AUTOINCREMENT, finished_at REAL NOT NULL, model TEXT NOT NULL, strategy TEXT NOT NULL,
  executor INTEGER NOT NULL, rows INTEGER NOT NULL, input_length INTEGER NOT NULL, generation_length INTEGER NOT NULL,
  predicted_length REAL, predicted_seconds REAL, seconds REAL NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS batches_by_time ON batches (finished_at)",
)


def prepare(connection: sqlite3.Connection) -> None:
    """Make the tables, or take over those of an earlier version: all of it in one transaction, or nothing.

    Raises sqlite3.DatabaseError for a version that is not known here, and then nothing was touched.
    """
    with connection:
        if read_version(connection) == VERSION:
            return
        connection.execute("BEGIN IMMEDIATE")  # so that of two processes the second finds it done
        version = read_version(connection)
        if not 0 <= version <= VERSION:
            raise sqlite3.DatabaseError(f"its format is {version}, this program writes {VERSION}")
        for statement in TABLES:
            connection.execute(statement)
        if "scope" not in {column for _, column, *_ in connection.execute("PRAGMA table_info(requests)")}:
            connection.execute("ALTER TABLE requests ADD COLUMN scope TEXT NOT NULL DEFAULT ''")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def read_version(connection: sqlite3.Connection) -> int:
    """The version of a file's tables; 0 before they are made. Raises sqlite3.Error."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version
