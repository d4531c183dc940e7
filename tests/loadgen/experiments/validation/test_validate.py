"""`lengthwise simulate --validate` on a tiny checkpoint: the plumbing, not the figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.measure.timing import Timings
from loadgen.experiments.validation import validate
from models.network.loader import LoadedModel
from scheduler.serving_time.bilinear import Bilinear, FitErrors
from scheduler.serving_time.profile_file import Profile, write_profile
from server.cli import main as cli
from server.cli.config import ServeConfig
from server.composition.devices import conditions_of

COST = Bilinear(0, 0, 0, 0.01, 0, 0, 0, 0.002)


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    for name, value in {
        "CACHE": tmp_path / "cache",
        "DTYPE": "float32",
        "DEVICE": "cpu",
        "MAX_MODEL_LEN": 160,
        "MAX_NUM_SEQS": 4,
        "KV_CACHE_MEMORY": 0.01,
    }.items():
        monkeypatch.setenv(f"LENGTHWISE_{name}", str(value))
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def profiled(tmp_path: Path, tiny_folder: Path, tiny_model: LoadedModel) -> None:
    config = ServeConfig(model=str(tiny_folder), dtype="float32", device="cpu", max_model_len=160, max_num_seqs=4)
    conditions = conditions_of(config, tiny_model)
    write_profile(
        tmp_path / "cache",
        Profile(conditions, "2026-01-01T00:00:00", "0", COST, FitErrors(0, 0, None), Timings((), ())),
    )


LOAD = ("--quick", "--rate", "20", "--duration", "0.4", "--max-output-len", "12", "--dataset-name", "random")


@pytest.mark.usefixtures("profiled")
def test_engine_and_simulator_stand_side_by_side(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    names = "baton-pd,vs,scls,sjf-oracle-continuous"
    flags = ["--validate", str(tiny_folder), *LOAD, "--strategies", names, "--slice-length", "8"]
    code = cli.main(["simulate", *flags, "--save-result", str(file)])
    output = capsys.readouterr()
    document = json.loads(file.read_text())
    told = document["verdicts"]
    assert document["machine"]["processor"]
    assert [one["strategy"] for one in told] == names.split(",")
    assert code == (0 if all(one["holds"] for one in told) else 1)
    for one in told:
        assert one["strategy"] in output.out and f"{one['strategy']} on the engine: 8 requests" in output.err
        for quantity in ("mean JCT (s)", "throughput (req/s)"):
            value = one["quantities"][quantity]
            assert value["real"] > 0
            assert value["deviation"] == pytest.approx(value["simulated"] / value["real"] - 1)
    # By the profile it is arithmetic, however fast this run was: 12 tokens each, the first of them with the prefill.
    assert told[0]["quantities"]["mean JCT (s)"]["profiled"] >= 0.01 + 11 * 0.002


@pytest.mark.usefixtures("profiled")
def test_without_a_rate_the_machine_sets_the_pace(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--quick", "--duration", "0.2", "--max-output-len", "4", "--dataset-name", "random", "--strategies", "vs"]
    flags += ["--rhos", "0.5,1.2"]
    assert cli.main(["simulate", "--validate", str(tiny_folder), *flags]) in (0, 1)
    output = capsys.readouterr()
    assert output.err.count("vs on the engine: ") >= 3, "a probe, and two loads"
    assert "mean JCT" in output.out and "1.2" in output.out


@pytest.mark.usefixtures("profiled")
def test_ctrl_c_leaves_the_verdicts_until_then(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only when all strategies had been played was anything written."""
    file, play, left = tmp_path / "result.json", validate._play, iter(range(1))

    def until(*given: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return play(*given)

    monkeypatch.setattr(validate, "_play", until)
    flags = ["--validate", str(tiny_folder), *LOAD, "--strategies", "baton-pd,vs", "--save-result", str(file)]
    assert cli.main(["simulate", *flags]) == 130
    assert [one["strategy"] for one in json.loads(file.read_text())["verdicts"]] == ["baton-pd"]
    assert "baton-pd" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [((), "run `lengthwise profile "), (("--strategies", "nonsense"), "nonsense is none of")],
)
def test_what_is_missing_is_told_with_its_remedy(
    tiny_folder: Path, flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["simulate", "--validate", str(tiny_folder), *flags]) == 1
    error = capsys.readouterr().err
    assert error.startswith("lengthwise: error: ") and message in error


def test_an_unknown_model_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "--validate", "/nowhere/at/all"]) == 1
    assert capsys.readouterr().err.startswith("lengthwise: error: ")
