"""`lengthwise train` on a tiny model and a tiny embedder: what it reads, prints and keeps, and its errors."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from models.catalog.catalog import Catalog
from scheduler.length.forest import load
from server.cache_paths import forest_path
from server.cli.commands import train as train_command
from tests.scheduler.entries import request_entry, written
from tests.server.cli.commands.runner import Told, run_command

pytestmark = pytest.mark.usefixtures("cache")

run = partial(run_command, train_command.add_parser, "train")


@pytest.fixture
def learned(told: Told, tiny_folder: Path, embedder: Path) -> Told:
    """Trains a few trees for the tiny model, or for what is given later."""
    return partial(told, "--tokenizer", tiny_folder, "--embedder", embedder, "--trees", 2)


def requests(path: Path, rows: int = 60, **more: object) -> Path:
    """Two tasks: one answers as long as its input, the other three times as long."""
    lines = []
    for number in range(rows):
        words, task = 1 + number % 12, number % 2
        text = " ".join("abcdefghijkl"[:words])
        line = {"instruction": "a b" if task else "x y z", "input": text, "length": words * (3 if task else 1), **more}
        lines.append(json.dumps({key: value for key, value in line.items() if value is not None}) + "\n")
    path.write_text("".join(lines))
    return path


def test_a_file_becomes_a_report_and_a_forest(
    tmp_path: Path, tiny_folder: Path, embedder: Path, cache: Path, learned: Told
) -> None:
    out = learned(requests(tmp_path / "rows.jsonl"), "--trees", 5)
    forest, about = load(forest_path(cache, str(tiny_folder)))
    assert (about.embedder, about.max_tokens, about.growth.trees) == (str(embedder), 32, 5)
    assert len(forest.examples) == 60
    words = ("mae", "rmse", "tau", "UILO", "RAFT", "INST", "USIN", "own-embeddings", "mean", "60 rows, 2 instructions")
    assert [word for word in (*words, str(forest_path(cache, str(tiny_folder)))) if word not in out] == []


def test_a_folder_with_a_tokenizer_alone_is_enough_for_files(tmp_path: Path, tiny_folder: Path, learned: Told) -> None:
    """The whole model was loaded for its embeddings, without which the own ones are only not measured."""
    alone = tmp_path / "alone"
    shutil.copytree(tiny_folder, alone, ignore=shutil.ignore_patterns("*.safetensors*", "config.json"))
    out = learned(requests(tmp_path / "rows.jsonl"), "--tokenizer", alone)
    assert "USIN" in out and "own-embeddings" not in out


def test_the_report_as_json_and_the_forest_where_it_is_wanted(tmp_path: Path, learned: Told) -> None:
    file, out = requests(tmp_path / "rows.jsonl", length=200), tmp_path / "my.forest"
    flags = ("--trees", 5, "--output", out, "--sample", 40, "--held-out", "tasks", "--holdout", 0.5)
    report = json.loads(learned(file, *flags, "--json"))
    assert (report["rows"], report["instructions"], report["forest"]) == (40, 2, str(out))
    assert (report["best"], report["installed"]) == ("new forest", True)
    assert list(report["mae"]) == ["new forest", "user input length"]
    assert list(report["held_out"]) == ["mean", "UILO", "RAFT", "INST", "USIN", "own-embeddings"]
    own = report["held_out"]["own-embeddings"]
    assert own["mae"] == 0 and own["coverage"] == pytest.approx(0.9)
    assert report["held_out"]["UILO"]["coverage"] is None
    assert len(load(out)[0].examples) == 40


def test_references_are_counted_with_the_end_token(tmp_path: Path, learned: Told) -> None:
    out = tmp_path / "my.forest"
    learned(requests(tmp_path / "rows.jsonl", length=None, reference="qqq"), "--output", out)
    (length,) = set(load(out)[0].examples.lengths.tolist())
    assert length == 4  # three letters that make no common token, and the end


def test_without_files_the_journal_is_used(cache: Path, tmp_path: Path, told: Told) -> None:
    features = [tuple([float(number % 2)] * 4 + [0.0] * 16 + [float(number)]) for number in range(30)]
    own = [request_entry(generated=100 + number, features=one) for number, one in enumerate(features)]
    others = [replace(request_entry(features=one), model="another") for one in features]  # with other lengths
    written(cache / "journal" / "journal.sqlite3", *own, *others)
    out = tmp_path / "my.forest"
    assert "30 rows, 2 instructions" in told("--trees", 3, "--output", out, "--tokenizer", "somewhere/tiny")
    assert load(out)[0].examples.lengths.tolist() == list(range(100, 130))


def test_a_forest_is_installed_only_where_it_beats_both_others(cache: Path, tmp_path: Path, told: Told) -> None:
    out = tmp_path / "my.forest"

    def learn(lengths: Callable[[int], int], inputs: range) -> dict[str, Any]:
        """Train anew from answers to inputs of these lengths."""
        entries = (request_entry(generated=lengths(one), features=(0.0,) * 20 + (float(one),)) for one in inputs)
        journal = written(tmp_path / f"{inputs}.sqlite3", *entries).path
        flags = ("--trees", 20, "--output", out, "--tokenizer", "somewhere/tiny", "--journal", journal)
        report: dict[str, Any] = json.loads(told(*flags, "--json"))
        return report

    first = learn(lambda number: number, range(1, 61))
    assert (first["best"], first["installed"], out.exists()) == ("user input length", False, False)
    assert list(first["mae"]) == ["new forest", "user input length"] and first["mae"]["user input length"] == 0
    second = learn(lambda number: 100 + number, range(1, 62))
    assert (second["best"], second["installed"]) == ("new forest", True)
    kept = out.read_bytes()
    third = learn(lambda number: 101 + number, range(1, 61, 3))  # too few to do as well
    assert (third["best"], third["installed"]) == ("old forest", False)
    assert third["mae"]["old forest"] < third["mae"]["new forest"] < third["mae"]["user input length"]
    assert out.read_bytes() == kept
    again = learn(lambda number: 100 + number, range(1, 62))  # the old one has seen what it would be judged by
    assert list(again["mae"]) == ["new forest", "user input length"] and again["installed"]


def test_the_report_says_which_predictor_is_best_and_by_what(tmp_path: Path, learned: Told) -> None:
    out = tmp_path / "my.forest"
    said = learned(requests(tmp_path / "rows.jsonl", length=500), "--trees", 5, "--output", out)
    assert "mean absolute error on 12 rows held out: new forest 0.0, user input length 4" in said
    assert f"the new forest is in {out}" in said


USELESS = [
    ('{"instruction": "a"}', "rows.jsonl:1: .*missing required field `input`"),
    ('{"instruction": "a", "input": "b"}', "rows.jsonl:1: neither length nor reference"),
    ('{"instruction": "a", "input": "b", "length": 0}', "Expected `int` >= 1"),
    ("nonsense", "rows.jsonl:1: .*each line is an object with instruction, input"),
    ('{"instruction": "a", "input": "b", "length": 3}', "only 1 rows to train from, 20 is the least"),
    ("", "only 0 rows"),
]


@pytest.mark.parametrize(("line", "message"), USELESS)
def test_what_cannot_be_used_is_told_in_a_line_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told, line: str, message: str
) -> None:
    monkeypatch.setattr(Catalog, "resolve", None)
    (tmp_path / "rows.jsonl").write_text(line)
    assert re.search(f"^lengthwise: error: .*{message}", told(tmp_path / "rows.jsonl", code=1))


def test_a_journal_without_answers_of_the_model_is_told(cache: Path, told: Told) -> None:
    written(cache / "journal" / "journal.sqlite3", request_entry())
    assert "has no answer of other that was predicted" in told("--tokenizer", "other", code=1)


def test_an_output_that_cannot_be_written_is_told_at_once(tmp_path: Path, told: Told) -> None:
    """It was told when all was trained, which was lost with that."""
    said = told(tmp_path / "no such file", "--output", tmp_path, code=1)
    assert f"{tmp_path}: cannot be written: Is a directory" in said
