"""`lengthwise bench baton` from its arguments to its tables and files, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadgen.experiments.baton.command import print_differences
from loadgen.experiments.baton.options import parse_scale
from models.errors import UserError
from server.cli import main as cli

SMALL = ("--scale", "1/400", "--num-queries", "4", "--short-scale", "1/40", "--num-short-queries", "3")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")


def test_both_tables_row_by_row(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, report = tmp_path / "result.json", tmp_path / "report.html"
    files = ("--save-result", str(result), "--save-report", str(report))
    assert cli.main(["bench", "baton", str(tiny_folder), "--device", "cpu", *SMALL, *files]) == 0
    out = capsys.readouterr().out
    assert "Target-1 (Table 1): 4 queries, lengths x 1/400, doubled at a batch of 4" in out
    assert "Every method gave the same answers." in out
    saved = json.loads(result.read_text())
    sizes = [[batch["batch_size"] for batch in table["batches"]] for table in saved["tables"]]
    assert sizes == [[4, 8], [2, 4, 6, 8, 10]]
    scales = [batch["scale"] for batch in saved["tables"][0]["batches"]]
    assert scales == [2 / 400, 1 / 400]
    methods = [[line["method"] for line in batch["lines"]] for table in saved["tables"] for batch in table["batches"]]
    assert methods == [["Benchmark", "PD", "Baton", "Baton-PD"]] * 2 + [["Benchmark", "Baton"]] * 5
    assert saved["setting"]["dtype"] == "float32"
    assert report.read_text().count("<svg") == 3 * 7


def test_queries_longer_than_the_context_are_refused(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "baton", str(tiny_folder), "--scale", "1", "--target", "1"]) == 1
    assert "ask for shorter ones" in capsys.readouterr().err


def test_a_page_needs_what_draws_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("loadgen.html.plot.can_draw", lambda: False)
    assert cli.main(["bench", "baton", "--save-report", str(tmp_path / "report.html")]) == 1
    assert "--save-report needs pip install 'lengthwise[report]'" in capsys.readouterr().err


def test_answers_may_differ_where_rounding_depends_on_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    print_differences(0, "bfloat16")
    print_differences(2, "bfloat16")
    assert "2 answers differ from Benchmark's: bfloat16 rounds by the batch" in capsys.readouterr().out
    with pytest.raises(UserError, match="2 answers differ"):
        print_differences(2, "float32")


def test_scales_are_fractions_or_decimals(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_scale("1/16") == parse_scale("0.0625")
    for text in ("0", "x", "1/0"):
        with pytest.raises(SystemExit):
            cli.main(["bench", "baton", "--scale", text])
    assert capsys.readouterr().err.count("error: argument --scale") == 3
