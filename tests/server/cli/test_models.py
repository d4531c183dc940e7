"""`lengthwise models`: what it prints where, and its exit codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from models.catalog.catalog import DEFAULT_EMBEDDER, DEFAULT_MODEL
from server.cli import models as models_command
from tests import tiny
from tests.server.cli.commands import run_command

pytestmark = pytest.mark.usefixtures("cache")

run = partial(run_command, models_command.add_parser, "models")


def test_the_list_names_the_packaged_models_and_touches_no_disk(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "KIND", "CACHED", "SIZE", "FOLDER", "ABOUT"]
    assert [row.split()[:3] for row in rows] == [
        [DEFAULT_MODEL, "causal-lm", "no"],
        [DEFAULT_EMBEDDER, "sentence-embedder", "no"],
    ]
    assert not cache.exists()


def test_the_list_as_json_has_sizes_and_folders(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json") == 0
    first, *_ = json.loads(capsys.readouterr().out)
    assert (first["name"], first["cached"]) == (DEFAULT_MODEL, False)
    assert first["size"] > 0
    assert first["folder"].startswith(str(cache))


def test_path_prints_the_folder_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny.build(tmp_path / "mine")
    assert run("--path", str(folder)) == 0
    assert capsys.readouterr().out == f"{folder}\n"


def test_a_model_that_cannot_be_had_is_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--path", "smollm2") == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"lengthwise: error: unknown model 'smollm2': did you mean {DEFAULT_MODEL}?")
    assert output.err.count("\n") == 1


def test_path_and_json_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--path", DEFAULT_MODEL, "--json") == 2
    assert "leave out --json" in capsys.readouterr().err
