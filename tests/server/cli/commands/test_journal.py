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
from tests.server.cli.commands.runner import Told, run_command

run = partial(run_command, journal_command.add_parser, "journal")


@pytest.fixture
def path(cache: Path) -> Path:
    """The journal of a server that has served three requests, one of them just now, and a batch."""
    served = ((1.0, 30111), (2.0, 30222), (time.time(), 30333))
    entries = (request_entry(at, generated=generated) for at, generated in served)
    return written(cache / "journal" / "journal.sqlite3", *entries).path


def test_show_prints_the_newest(path: Path, told: Told) -> None:
    out = told("show", "-n", 2)
    assert "30222" in out and "30333" in out and "30111" not in out
    assert all(word in out for word in ("magnus", "stop", "forest", "0.750 s", "1.500 s"))


def test_export_writes_jsonl(path: Path, told: Told) -> None:
    row = json.loads(told("export", "--since", "1h"))
    assert (row["generated"], row["features"], row["predicted"]) == (30333, [0.5, 2.0], 30.5)


def test_export_writes_csv(path: Path, told: Told) -> None:
    rows = list(csv.DictReader(io.StringIO(told("export", "--format", "csv"))))
    assert [row["generated"] for row in rows] == ["30111", "30222", "30333"]
    assert (rows[0]["features"], rows[0]["instruction"]) == ("0.5 2.0", "")


def test_export_writes_rows_to_train_from(path: Path, told: Told) -> None:
    kept = request_entry(time.time(), generated=7, instruction="Mend it.", user_input="It are.")
    written(path, *(replace(kept, outcome=one) for one in ("stop", "length", "cancelled")))
    row = {"instruction": "Mend it.", "input": "It are.", "length": 7}
    rows = [json.loads(line) for line in told("export", "--what", "lengths").splitlines()]
    assert rows == [row | {"cut": False}, row | {"cut": True}]


def test_rows_to_train_from_need_texts(path: Path, told: Told) -> None:
    said = told("export", "--what", "lengths", code=1)
    assert "none of 3 answers has its texts: `lengthwise serve --journal-prompts`" in said


def test_prune_deletes_by_age_and_number(path: Path, told: Told) -> None:
    assert told("prune", "--keep", 2) == told("prune", "--older-than", "1d") == "1 entries deleted\n"
    assert [one.generated for one in read(path)] == [30333]


def test_prune_wants_to_know_what(path: Path, told: Told) -> None:
    assert "say what to delete, with --older-than or --keep" in told("prune", code=2)
    assert len(list(read(path))) == 3
