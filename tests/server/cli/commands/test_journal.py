"""`lengthwise journal`: show, export and prune, and their errors."""

import csv
import io
import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from scheduler.journal.file import read
from server.cli.commands import journal as journal_command
from tests.scheduler.entries import request_entry, written
from tests.server.cli.commands.runner import run_command

run = partial(run_command, journal_command.add_parser, "journal")


@pytest.fixture
def path(cache: Path) -> Path:
    """The journal of a server that has served three requests, one of them just now, and a batch."""
    served = ((1.0, 30111), (2.0, 30222), (time.time(), 30333))
    entries = (request_entry(at, generated=generated) for at, generated in served)
    return written(cache / "journal" / "journal.sqlite3", *entries).path


def test_show_prints_the_newest(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "-n", "2") == 0
    out = capsys.readouterr().out
    assert "30222" in out and "30333" in out and "30111" not in out
    assert all(word in out for word in ("magnus", "stop", "forest", "0.750 s", "1.500 s"))


def test_export_writes_jsonl(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", "--since", "1h") == 0
    (line,) = capsys.readouterr().out.splitlines()
    row = json.loads(line)
    assert (row["generated"], row["features"], row["predicted"]) == (30333, [0.5, 2.0], 30.5)


def test_export_writes_csv(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["generated"] for row in rows] == ["30111", "30222", "30333"]
    assert (rows[0]["features"], rows[0]["instruction"]) == ("0.5 2.0", "")


def test_export_writes_rows_to_train_from(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = request_entry(time.time(), generated=7, instruction="Mend it.", user_input="It are.")
    written(path, *(replace(kept, outcome=one) for one in ("stop", "length", "cancelled")))
    assert run("export", "--what", "lengths") == 0
    row = {"instruction": "Mend it.", "input": "It are.", "length": 7}
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [row | {"cut": False}, row | {"cut": True}]


def test_rows_to_train_from_need_texts(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", "--what", "lengths") == 1
    assert "none of 3 answers has its texts: `lengthwise serve --journal-prompts`" in capsys.readouterr().err


def test_prune_deletes_by_age_and_number(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("prune", "--keep", "2") == 0
    assert capsys.readouterr().out == "1 entries deleted\n"
    assert run("prune", "--older-than", "1d") == 0
    assert [one.generated for one in read(path)] == [30333]


def test_prune_wants_to_know_what(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("prune") == 2
    assert "say what to delete, with --older-than or --keep" in capsys.readouterr().err
    assert len(list(read(path))) == 3
