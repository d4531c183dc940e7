"""The journal's thread and its file: what can be kept is kept, and nothing that goes wrong reaches the caller."""

import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler.journal.file import VERSION, JournalError, append, connect, prune, read
from scheduler.journal.writer import Journal, JournalBounds, trim
from scheduler.length.learning import ServedRow, served_rows
from tests.scheduler.entries import request_entry, written

ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a journal that waits for locks a hundredth of a second at a time."""
    monkeypatch.setattr("scheduler.journal.file.BUSY", 0.01)
    return tmp_path / "journal" / "journal.sqlite3"


def times(path: Path, **chosen: Any) -> list[float]:
    return [one.finished_at for one in read(path, **chosen)]


def test_entries_come_back_as_they_went_in_behind_those_of_an_earlier_journal(path: Path) -> None:
    requests = [request_entry(1.0, instruction="Übersetze"), request_entry(2.0, predicted=None, features=())]
    journal = written(path, *requests)
    assert list(read(path)) == requests
    assert (journal.written, journal.lost) == (2, 0)
    written(path, request_entry(3.0))
    assert times(path) == [1.0, 2.0, 3.0]


def test_reading_can_begin_at_a_time_and_be_limited_to_the_newest_of_all_or_of_a_model(path: Path) -> None:
    """Those of a model were those among the newest of all, none where another model had been served since."""
    written(path, *(replace(request_entry(float(at)), model="own" if at < 3 else "another") for at in range(6)))
    assert times(path, since=2.0) == [2.0, 3.0, 4.0, 5.0]
    assert (times(path, last=2), times(path, last=2, model="own")) == ([4.0, 5.0], [1.0, 2.0])


def test_a_full_queue_drops_and_counts(path: Path) -> None:
    journal = Journal(path, limit=2)  # not started: nobody takes anything out
    for at in range(5):
        journal.put(request_entry(float(at)))
    assert journal.lost == 3
    journal.start()
    journal.close()
    assert times(path) == [0.0, 1.0]


@pytest.mark.parametrize("opens", [False, True])
def test_a_damaged_file_is_set_aside_for_a_new_one(path: Path, opens: bool, caplog: pytest.LogCaptureFixture) -> None:
    with closing(connect(path)) as connection:
        connection.executescript("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = path.read_bytes()
    damaged = (whole[:4096] if opens else b"no database") + b"\xff" * (len(whole) - 4096)  # with its header it opens
    path.write_bytes(damaged)
    journal = written(path, request_entry())
    assert list(read(path)) == [request_entry()]
    (aside,) = path.parent.glob("*.damaged-*")
    assert opens or aside.read_bytes() == damaged
    assert "was damaged" in caplog.text and str(aside) in caplog.text
    assert (journal.written, journal.lost) == (1, 0)


def test_a_newer_version_s_journal_is_left_for_one_beside_it(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was renamed and its log of latest writes deleted, so that nothing was left of 240 rows."""
    with closing(connect(path)) as newer:
        newer.execute(f"PRAGMA user_version = {VERSION + 1}")
        append(newer, [request_entry(float(at)) for at in range(240)])
        journal = written(path, request_entry(9.0))
        append(newer, [request_entry(240.0)])
    assert (journal.written, journal.lost, journal.path.name) == (1, 0, f"journal.format-{VERSION}.sqlite3")
    assert f"recorded in {journal.path}" in caplog.text
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM requests").fetchone() == (241,)
    assert list(read(path)) == [request_entry(9.0)], "reading finds what this version wrote"
    assert list(path.parent.glob("*.damaged-*")) == []


def test_a_newer_version_that_takes_the_journal_over_beside_us_costs_nothing(path: Path) -> None:
    journal = Journal(path)
    journal._append([request_entry(1.0)])
    with closing(sqlite3.connect(path)) as newer:
        newer.executescript(f"ALTER TABLE requests ADD COLUMN new TEXT; PRAGMA user_version = {VERSION + 1};")
        newer.executescript("CREATE TRIGGER strict BEFORE INSERT ON requests BEGIN SELECT RAISE(ABORT, 'new'); END;")
    journal._append([request_entry(2.0)])
    journal._close()
    assert (journal.written, journal.path == path) == (2, False)
    assert list(path.parent.glob("*.damaged-*")) == []


@contextmanager
def held(path: Path) -> Iterator[None]:
    """By another process."""
    with closing(connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def noted(monkeypatch: pytest.MonkeyPatch, name: str, function: Callable[..., None]) -> threading.Event:
    """Set once the function of that name has been called."""
    called = threading.Event()

    def note(*given: Any) -> None:
        function(*given)
        called.set()

    monkeypatch.setattr(name, note)
    return called


def test_entries_wait_for_locks(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A lock of more than 5 seconds cost all that ended meanwhile."""
    monkeypatch.setattr("scheduler.journal.writer.RETRY", 0.01)
    refused = noted(monkeypatch, "scheduler.journal.writer.Journal._complain", Journal._complain)
    journal = Journal(path)
    with held(path):
        journal.start()
        for at in range(198):
            journal.put(request_entry(float(at)))
        assert refused.wait(20)
    journal.close()
    assert (journal.written, journal.lost, len(list(read(path)))) == (198, 0, 198)
    assert len(caplog.records) == 1 and "database is locked" in caplog.text


def test_each_entry_tells_when_it_is_on_the_disk_or_lost(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(path, limit=1)
    stored, lost = journal.put(request_entry(1.0)), journal.put(request_entry(2.0))
    assert not stored.done() and lost.result(0) is False
    journal.start()
    assert stored.result(20) is True
    assert times(path) == [1.0]
    with held(path):
        late = journal.put(request_entry(3.0))
        journal.close()
        assert late.result(0) is False
    assert (journal.written, journal.lost) == (1, 2) and "cannot be written" in caplog.text


def test_what_is_too_old_is_deleted_though_nothing_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    written(path, *(request_entry(now - age) for age in (900.0, 700.0, 5.0)))
    monkeypatch.setattr("scheduler.journal.writer.INTERVAL", 0.01)
    trimmed = noted(monkeypatch, "scheduler.journal.writer.trim", trim)
    journal = Journal(path, bounds=JournalBounds(age=600.0))
    journal.start()
    assert trimmed.wait(20)
    journal.close()
    assert times(path) == [now - 5.0]


def test_a_file_that_is_full_loses_its_oldest_entries(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.journal.writer.CHUNK", 10)
    journal = Journal(path, bounds=JournalBounds(size=200_000))
    for at in range(0, 3000, 100):
        journal._append([request_entry(float(number)) for number in range(at, at + 100)])
        journal._trim()
    journal._close()
    left = [one.finished_at for one in read(path)]
    assert left == [float(at) for at in range(3000 - len(left), 3000)] and 500 < len(left) < 2500
    assert path.stat().st_size < 300_000


@pytest.mark.parametrize("before", [None, 0o644])
def test_a_journal_is_for_its_owner_alone(path: Path, before: int | None) -> None:
    """It may hold prompts, and was readable by all."""
    umask = os.umask(0o022)
    try:
        if before is not None:
            written(path, request_entry())
            path.chmod(before)
        with closing(connect(path)) as connection:
            append(connection, [request_entry()])
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
            assert modes == dict.fromkeys([path.name, f"{path.name}-wal", f"{path.name}-shm"], 0o600)
            assert connection.execute("PRAGMA synchronous").fetchone() == (2,), "each commit is on the disk"
    finally:
        os.umask(umask)


def test_a_full_disk_is_told(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Once, and writing resumes with what waited."""

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("scheduler.journal.writer.append", full)
        journal = Journal(path)
        assert [journal._store([request_entry(9.0)]) for _ in range(3)] == [False] * 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "disk is full" in caplog.text
    assert journal._store([request_entry(9.0)])
    assert (journal.written, journal.lost) == (1, 0)
    assert times(path) == [9.0]
    journal._close()


def test_lasting_faults_are_told(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(path, limit=2)
    for second, messages in ((0.0, 1), (59.0, 1), (60.0, 2), (119.0, 2), (120.0, 3)):
        monkeypatch.setattr("scheduler.journal.writer.time.monotonic", lambda second=second: second)
        for _ in range(3):
            journal.put(request_entry())
        journal._complain("disk is full")
        assert len(caplog.records) == messages
    assert caplog.messages[-1].endswith("disk is full; 2 entries wait, 13 are lost")


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
    assert len(list(read(path))) == 100


@pytest.mark.parametrize("name", ["absent", "text"])
def test_what_is_no_journal_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "text").write_text("hello" * 1000)
    with pytest.raises(JournalError, match="no journal"):
        list(read(tmp_path / name))
    with pytest.raises(JournalError, match=r"no journal|cannot be pruned"):
        prune(tmp_path / name, keep=1)


def test_what_can_be_learned_from_are_answers_that_were_predicted_and_not_broken_off(path: Path) -> None:
    whole = {"generated": 20}, {"generated": 64, "outcome": "length"}, {"generated": 300, "outcome": "repetition"}
    broken = {"outcome": "cancelled"}, {"outcome": "error"}, {"predicted": None}, {"features": ()}, {"generated": 0}
    written(path, *(request_entry(**fields) for fields in (*whole, *broken)))
    lengths = [(20, False), (64, True), (300, True)]
    assert served_rows(read(path)) == [ServedRow((0.5, 2.0), 30.5, length, cut=cut) for length, cut in lengths]
