"""`lengthwise bench gpu` on a machine without one: the whole run on a tiny network, and what a failure leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from loadgen.experiments.engine import gpu, setup
from loadgen.experiments.engine.gpu import Parts
from server.cli.main import main

SHORT = ("--rows", "1", "3", "--length", "24")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "BUFFER_BYTES", 2**20)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def run(file: Path) -> tuple[int, Any]:
    code = main(["bench", "gpu", *SHORT, "--save-result", str(file)])
    return code, json.loads(file.read_text())


def test_a_dry_run_goes_through_all_parts_and_says_that_it_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run(tmp_path / "gpu.json")
    assert code == 0 and capsys.readouterr().out.startswith("no CUDA device: a dry run of a tiny network")
    assert found["setting"]["dry"] and found["setting"]["dtype"] == "torch.float32"
    assert found["parity"] == {"graph": "5 of 5", "eager": "5 of 5", "mask": "5 of 5"}
    host = found["host"]
    assert host["streams"] == 8 and host["tokens_s"] == pytest.approx(8e3 / host["step_ms"], rel=0.1)
    assert host["step_ms"] > 0.9 * host["cost_ms"] > 0 and host["server_us"] > 0 and host["events_a_read"] >= 1
    assert max(found["rounding"].values()) < 1e-4 and found["graphs"]["count"] == 3
    for rows in (1, 3):
        step = found[f"step {rows}"]
        assert {f"{way}_ms" for way in ("graph", "eager", "mask", "turn", "floor")} <= step.keys()
        assert step["graph_share_of_floor"] == pytest.approx(step["floor_ms"] / step["graph_ms"])
        assert found[f"attention {rows}"]["error"] < 1e-5
        assert found[f"generate {rows}"]["ratio"] > 0
    assert len(found["prefill 512"]["new_ms"]) == 4 and found["prefill 2048"]["tokens_s"] > 0
    assert len(found["copies"]["out_ms"]) == 3


def test_a_part_that_fails_is_told_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Parts, "step", fail)
    monkeypatch.setattr(gpu, "measure_host", dict)
    code, found = run(tmp_path / "gpu.json")
    assert code == 1 and found["step 1"] == {"failed": "OutOfMemoryError: CUDA out of memory"}
    assert "failed OutOfMemoryError" in capsys.readouterr().out and found["copies"]["out_ms"]


def test_no_part_begins_when_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "LIMIT", 0.0)
    code, found = run(tmp_path / "gpu.json")
    assert code == 0 and found["parity"] == found["copies"] == {"left out": "no time"}


@pytest.mark.parametrize(("free", "layers"), [(80e9, 32), (24e9, 11), (1e9, 1)])
def test_the_network_has_as_many_layers_as_fit(free: float, layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (int(free), int(free)))
    assert gpu._count_layers(torch.device("cuda:0")) == layers
