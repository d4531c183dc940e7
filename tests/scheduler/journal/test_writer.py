"""The journal's thread and its file: what can be kept is kept, and nothing that goes wrong reaches the caller."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from scheduler.journal.file import BatchEntry, JournalError, RequestEntry, connect, prune, read
from scheduler.journal.writer import Journal
from scheduler.length.learning import ServedRow, served_rows
from tests.scheduler.entries import batch_entry, request_entry, written

ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal" / "journal.sqlite3"


def test_entries_come_back_as_they_went_in(path: Path) -> None:
    requests = [request_entry(1.0, instruction="Übersetze"), request_entry(2.0, predicted=None, features=())]
    journal = written(path, *requests, batch_entry())
    assert list(read(path, RequestEntry)) == requests
    assert list(read(path, BatchEntry)) == [batch_entry()]
    assert (journal.written, journal.lost) == (3, 0)


def test_a_journal_goes_on_where_an_earlier_one_ended(path: Path) -> None:
    written(path, request_entry(1.0))
    written(path, request_entry(2.0))
    assert [one.finished_at for one in read(path, RequestEntry)] == [1.0, 2.0]


def test_reading_can_begin_at_a_time_and_be_limited_to_the_newest(path: Path) -> None:
    written(path, *(request_entry(float(at)) for at in range(5)))
    assert [one.finished_at for one in read(path, RequestEntry, since=2.0)] == [2.0, 3.0, 4.0]
    assert [one.finished_at for one in read(path, RequestEntry, last=2)] == [3.0, 4.0]


def test_a_full_queue_drops_and_counts(path: Path) -> None:
    journal = Journal(path, limit=2)  # not started: nobody takes anything out
    for at in range(5):
        journal.put(request_entry(float(at)))
    assert journal.lost == 3
    journal.start()
    journal.close()
    assert [one.finished_at for one in read(path, RequestEntry)] == [0.0, 1.0]


def test_a_damaged_file_is_set_aside_and_a_new_one_begins(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database at all" * 100)
    journal = written(path, request_entry())
    assert list(read(path, RequestEntry)) == [request_entry()]
    (aside,) = path.parent.glob("*.damaged-*")
    assert aside.read_bytes().startswith(b"no database")
    assert "was damaged" in caplog.text and str(aside) in caplog.text
    assert (journal.written, journal.lost) == (1, 0)


def test_a_file_that_is_damaged_while_it_is_open_is_set_aside_too(path: Path) -> None:
    with closing(connect(path)) as connection:
        connection.executescript("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))  # its header is fine, so that it opens
    journal = written(path, request_entry())
    assert list(read(path, RequestEntry)) == [request_entry()]
    assert len(list(path.parent.glob("*.damaged-*"))) == 1
    assert journal.lost == 0


def test_a_journal_of_another_format_is_set_aside_and_not_written_to(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    written(path, request_entry())
    assert list(read(path, RequestEntry)) == [request_entry()]
    assert len(list(path.parent.glob("*.damaged-*"))) == 1


def test_a_full_disk_is_counted_and_logged_once_and_writing_resumes(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("scheduler.journal.writer.append", full)
        journal = Journal(path)
        for _ in range(3):
            journal._store([request_entry()])
    journal._store([request_entry(9.0)])
    assert (journal.written, journal.lost) == (1, 3)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "disk is full" in caplog.text
    assert [one.finished_at for one in read(path, RequestEntry)] == [9.0]
    journal._close()


def test_a_place_that_cannot_be_written_does_not_raise(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    journal = written(tmp_path / "file" / "journal.sqlite3", request_entry())
    assert (journal.written, journal.lost) == (0, 1)
    assert "cannot be written" in caplog.text


def test_entries_survive_a_kill(path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from scheduler.journal.writer import Journal\n"
        "from tests.scheduler.entries import request_entry\n"
        "journal = Journal(pathlib.Path(sys.argv[1]))\n"
        "journal.start()\n"
        "for at in range(100): journal.put(request_entry(float(at)))\n"
        "while journal.written < 100: pass\n"
        "print('written', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        os.kill(process.pid, signal.SIGKILL)
    assert len(list(read(path, RequestEntry))) == 100


def test_pruning_deletes_by_age_and_by_number(path: Path) -> None:
    written(path, *(request_entry(float(at)) for at in range(6)), batch_entry(1.0))
    assert prune(path, before=2.0) == 3
    assert prune(path, keep=3) == 1
    assert [one.finished_at for one in read(path, RequestEntry)] == [3.0, 4.0, 5.0]
    assert list(read(path, BatchEntry)) == []


@pytest.mark.parametrize("name", ["absent", "text"])
def test_what_is_no_journal_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "text").write_text("hello" * 1000)
    with pytest.raises(JournalError, match="no journal"):
        list(read(tmp_path / name, RequestEntry))
    with pytest.raises(JournalError, match=r"no journal|cannot be pruned"):
        prune(tmp_path / name, keep=1)


def test_what_can_be_learned_from_are_answers_that_were_predicted_and_not_broken_off(path: Path) -> None:
    written(
        path,
        request_entry(generated=20),
        request_entry(generated=64, outcome="length"),
        request_entry(generated=300, outcome="repetition"),
        request_entry(outcome="cancelled"),
        request_entry(outcome="error"),
        request_entry(predicted=None),
        request_entry(features=()),
        request_entry(generated=0),
    )
    assert served_rows(read(path, RequestEntry)) == [
        ServedRow((0.5, 2.0), 30.5, 20),
        ServedRow((0.5, 2.0), 30.5, 64, cut=True),
        ServedRow((0.5, 2.0), 30.5, 300, cut=True),
    ]
