"""Journals of an earlier version: they are taken over with all their rows, and read as they are."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from scheduler.journal.file import STATEMENTS, VERSION, prepare, prune, read
from tests.scheduler.entries import request_entry, written

VERSION_1 = """
CREATE TABLE requests (
  id INTEGER PRIMARY KEY AUTOINCREMENT, finished_at REAL NOT NULL, model TEXT NOT NULL, strategy TEXT NOT NULL,
  outcome TEXT NOT NULL, input_length INTEGER NOT NULL, user_input_length INTEGER NOT NULL,
  max_tokens INTEGER NOT NULL, generated INTEGER NOT NULL, predicted REAL, source TEXT, assigned REAL, started REAL,
  first_token REAL, latency REAL NOT NULL, runs INTEGER NOT NULL, replayed INTEGER NOT NULL, features BLOB NOT NULL,
  instruction TEXT, user_input TEXT);
CREATE INDEX requests_by_time ON requests (finished_at);
CREATE TABLE batches (
  id INTEGER PRIMARY KEY AUTOINCREMENT, finished_at REAL NOT NULL, model TEXT NOT NULL, strategy TEXT NOT NULL,
  executor INTEGER NOT NULL, rows INTEGER NOT NULL, input_length INTEGER NOT NULL, generation_length INTEGER NOT NULL,
  predicted_length REAL, predicted_seconds REAL, seconds REAL NOT NULL);
CREATE INDEX batches_by_time ON batches (finished_at);
INSERT INTO requests VALUES
  (1, 100.0, 'tiny', 'magnus', 'stop', 12, 8, 64, 20, NULL, NULL, 0.25, 0.5, 0.75, 1.5, 1, 0, x'', NULL, NULL);
INSERT INTO batches VALUES (1, 100.0, 'tiny', 'magnus', 0, 3, 12, 20, 30.5, 2.5, 2.25);
PRAGMA user_version = 1;
"""

OLD = request_entry(predicted=None, features=())


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A journal of version 1 with a request and a batch."""
    path = tmp_path / "journal.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_1)
    return path


def look(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def version(path: Path) -> int:
    return int(look(path, "PRAGMA user_version")[0][0])


def tables(path: Path) -> set[str]:
    return {name for (name,) in look(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_an_older_journal_is_read_as_it_is(old: Path) -> None:
    before = old.read_bytes()
    assert list(read(old)) == [OLD]
    assert (old.read_bytes(), version(old)) == (before, 1)


def test_an_older_journal_is_taken_over_with_its_requests_and_without_its_batches(old: Path) -> None:
    journal = written(old, request_entry())
    assert (journal.written, journal.lost, version(old)) == (1, 0, VERSION)
    assert list(read(old)) == [OLD, request_entry()] and "batches" not in tables(old)
    assert list(old.parent.glob("*.damaged-*")) == []
    written(old, request_entry())
    assert len(list(read(old))) == 3


def test_a_taken_over_journal_has_the_columns_of_a_new_one(old: Path, tmp_path: Path) -> None:
    written(new := tmp_path / "new.sqlite3", OLD)
    assert prune(old, before=50.0) == 0, "pruning takes it over too"
    assert version(old) == VERSION and list(read(old)) == [OLD]
    found, made = ({row[1:3] for row in look(path, "PRAGMA table_info(requests)")} for path in (old, new))
    assert found == made


def test_tables_without_a_version_are_completed(old: Path) -> None:
    """As an earlier program left them that was killed before it had set the version."""
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("PRAGMA user_version = 0")
    written(old, request_entry())
    assert list(read(old)) == [OLD, request_entry()]


def test_a_take_over_that_fails_changes_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = (*STATEMENTS, "CREATE TABLE new (one)", "CREATE TABLE requests (one)")
    monkeypatch.setattr("scheduler.journal.file.STATEMENTS", statements)
    with closing(sqlite3.connect(old)) as connection, pytest.raises(sqlite3.OperationalError, match="already exists"):
        prepare(connection)
    assert version(old) == 1 and "batches" in tables(old) and "new" not in tables(old)
    monkeypatch.undo()
    assert written(old, request_entry()).lost == 0 and list(read(old)) == [OLD, request_entry()]
