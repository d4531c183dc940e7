"""`lengthwise paper` from its flags to the tables and the file, on a small share of each paper's size."""

import json
from functools import partial
from pathlib import Path

import pytest

from loadgen.experiments.commands import add_commands
from loadgen.experiments.paper.row import PUBLISHED
from loadgen.experiments.paper.run import PAPERS
from loadgen.experiments.paper.trial import Figures, TrialPoint, TrialStage
from tests.server.cli.commands.runner import run_command

run = partial(run_command, add_commands, "paper")
MAGNUS = ("--scale", "0.14", "--duration", "4", "--rates", "2,4", "--experiments", "main,ablation")


def test_rows_stand_beside_what_is_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    assert run("baton", "--scale", "0.05", "--save-result", file) == 0
    shown = capsys.readouterr().out
    assert "published" in shown and shown.index("It takes some ") < shown.index("measured")
    document = json.loads(file.read_text())
    assert (document["paper"], document["scale"]) == ("baton", 0.05)
    assert [*document["experiments"]] == [*PAPERS["baton"].experiments]
    assert all(one["title"] in shown and one["rows"] for one in document["experiments"].values())


@pytest.mark.parametrize(("scale", "fewest"), [("0.02", "1 request"), ("0.5", "15 requests"), ("1", None)])
def test_few_are_told(scale: str, fewest: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    assert run("baton", "--experiments", "table-2", "--scale", scale, "--save-result", file) == 0
    warning = json.loads(file.read_text())["experiments"]["table-2"]["warning"]
    if fewest is None:
        assert warning is None and "Warning" not in capsys.readouterr().out
    else:
        assert f"as few as {fewest} are compared" in warning
        assert f"as few as {fewest} are compared" in capsys.readouterr().out.replace("\n", " ")


def test_a_page_draws_what_is_swept_in_bands_over_seeds_beside_the_published(tmp_path: Path) -> None:
    """Batch sizes have claims only, and so no plot; the tables have the rows of both seeds."""
    page = tmp_path / "page.html"
    flags = ("--experiments", "rates,sizes", "--rates", "2,4", "--scale", "0.05", "--seeds", "2")
    assert run("ssjf", *flags, "--report", str(page)) == 0
    text = page.read_text()
    assert text.count("<svg") == 12 and text.count("measured, run 2") == 2
    assert 'aria-label="SSJF: rates, Figs. 4 and 6: ssjf-none: mean JCT less by"' in text
    assert "requests/s" in text and text.count("Published in 4.2, Fig. 4a.") == 2


def test_task_files_are_what_magnus_serves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"instruction": "Translate.", "input": "word " * n, "reference": "mot " * n} for n in range(1, 41)]
    (tmp_path / "mt_en_fr.jsonl").write_text("\n".join(json.dumps(one) for one in lines))
    file = tmp_path / "result.json"
    flags = ("--tasks", str(tmp_path), "--experiments", "main,correlations", "--rates", "3", "--duration", "4")
    assert run("magnus", *flags, "--scale", "0.14", "--save-result", str(file)) == 0
    assert "the task files mt_en_fr, 40 requests of each" in " ".join(capsys.readouterr().out.split())
    made = json.loads(file.read_text())["experiments"]
    assert made["main"]["runs"] and made["correlations"]["rows"][0]["measured"]["MT"] == pytest.approx(1.0, abs=0.01)


def test_ctrl_c_keeps_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file, left, play = tmp_path / "result.json", iter(range(6)), TrialStage.play

    def until(self: TrialStage, name: str, point: TrialPoint) -> Figures:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return play(self, name, point)

    monkeypatch.setattr(TrialStage, "play", until)
    assert run("magnus", *MAGNUS, "--save-result", str(file)) == 130
    document = json.loads(file.read_text())
    assert document["interrupted"] and list(document["experiments"]) == ["main"]
    strategies = [run["strategy"] for run in document["experiments"]["main"]["runs"]]
    assert strategies == ["vs", "ccb", "ccb-padded", "magnus", "vs", "ccb"]
    assert "interrupted" in capsys.readouterr().out


def test_every_experiment_has_the_time_that_it_takes() -> None:
    names = [(paper, name) for paper in PAPERS for name in PAPERS[paper].experiments]
    plain = {(paper, name.removesuffix("-authors").removesuffix("-ds")) for paper, name in names}
    assert {(paper, name) for paper, name, _ in PUBLISHED["seconds"]} == plain
