"""`lengthwise bench engine` from its arguments to its table and its file, on a tiny model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from loadgen.experiments.engine import setup
from server.cli import main as cli

SHORT = ("--input-len", "6", "--output-len", "4", "--rounds", "1", "--dtype", "float32")
NAMES = ["lengthwise", "generate"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "BUFFER_BYTES", 2**20)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")


def bench(folder: Path, *flags: str) -> int:
    return cli.main(["bench", "engine", str(folder), "--device", "cpu", *flags])


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_every_contestant_has_a_line_for_every_number_of_rows(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "result.json"
    assert bench(tiny_folder, "--rows", "1", "3", *SHORT, "--save-result", str(file)) == 0
    out = capsys.readouterr().out
    assert all(out.count(f"│ {name} ") == 2 for name in (*NAMES, "floor"))
    saved = read(file)
    assert [one["slots"] for one in saved["parts"]] == [1, 3]
    for one in saved["parts"]:
        assert [standing["name"] for standing in one["standings"]] == NAMES
        assert all(standing["trouble"] is None for standing in one["standings"])
        assert all(len(standing["rates"]) == 1 for standing in one["standings"])
        assert one["standings"][1]["ratio_to_generate"] == 1.0
        assert one["floor_step"] > 0
    assert saved["floor"]["bandwidth"] > 0


def test_other_ways_to_keep_weights_stand_beside_it(quick: None, tiny_folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "found.json"
    assert bench(tiny_folder, *SHORT, "--rows", "2", "--beside", "int8", "none", "--save-result", str(saved)) == 0
    names = [one["name"] for one in read(saved)["parts"][0]["standings"]]
    assert names == ["lengthwise", "lengthwise int8", "lengthwise none", "generate"]


def test_ragged_requests_stand_alone_unless_rows_are_named(tiny_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    ragged = ("--ragged", "--num-requests", "5", "--min-len", "2", "--max-len", "8", "--slots", "2")
    assert bench(tiny_folder, *ragged, *SHORT, "--save-result", str(file)) == 0
    [part] = read(file)["parts"]
    assert part["name"] == "ragged" and part["floor_step"] is None
    assert [(one["name"], one["trouble"]) for one in part["standings"]] == [(name, None) for name in NAMES]


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        (("--input-len", "600"), "ask for shorter ones"),
        (("--ragged", "--num-requests", "500"), "--num-requests"),
        (("--device", "cuda"), "--device cuda"),
        (("--save-result", "/proc/nowhere/result.json"), "choose another"),
        (("--save-result", "/tmp"), "name a file in it"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_takes_long(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...], remedy: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert cli.main(["bench", "engine", str(tiny_folder), *flags]) == 1
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1].startswith("lengthwise: error: ") and remedy in captured.err
    assert captured.out == ""


def test_numbers_that_make_no_sense_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--rows", "0"], ["--output-len", "1"], ["--rounds", "x"]):
        with pytest.raises(SystemExit):
            cli.main(["bench", "engine", *flags])
    err = capsys.readouterr().err
    for text, least in (("0", 1), ("1", 2), ("x", 1)):
        assert f"'{text}' is not a whole number of at least {least}" in err


def test_threads_that_wait_spin_briefly(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    bench(tiny_folder, "--input-len", "600")
    assert os.environ["GOMP_SPINCOUNT"] == "10000"
