"""`lengthwise bench engine` and `bench gpu` from their flags to tables and files, on tiny networks."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from loadgen.experiments.engine import gpu, setup
from server.cli import main as cli

SHORT = ("--input-len", "6", "--output-len", "4", "--rounds", "1", "--dtype", "float32")
NAMES = ["lengthwise", "generate"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "BUFFER_BYTES", 2**20)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")


def bench(folder: Path, *flags: str) -> int:
    return cli.main(["bench", "engine", str(folder), "--device", "cpu", *flags])


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_contestants_have_a_line_a_count(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    assert bench(tiny_folder, "--rows", "1", "3", *SHORT, "--save-result", str(file)) == 0
    out = capsys.readouterr().out
    assert all(out.count(f"│ {name} ") == 2 for name in (*NAMES, "floor"))
    saved = read(file)
    assert [one["rows"] for one in saved["parts"]] == [1, 3]
    for one in saved["parts"]:
        assert [standing["name"] for standing in one["standings"]] == NAMES
        assert all(standing["trouble"] is None for standing in one["standings"])
        assert all(len(standing["rates"]) == 1 for standing in one["standings"])
        assert one["standings"][1]["ratio_to_generate"] == 1.0
        assert one["floor_step"] > 0
    assert saved["floor"]["bandwidth"] > 0


def test_other_ways_to_keep_weights_stand_beside_it(tiny_folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "found.json"
    assert bench(tiny_folder, *SHORT, "--rows", "2", "--beside", "int8", "none", "--save-result", str(saved)) == 0
    names = [one["name"] for one in read(saved)["parts"][0]["standings"]]
    assert names == ["lengthwise", "lengthwise int8", "lengthwise none", "generate"]


def test_threads_that_wait_spin_briefly(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    bench(tiny_folder, "--input-len", "600")
    assert os.environ["GOMP_SPINCOUNT"] == "10000"


def run(file: Path) -> tuple[int, Any]:
    code = cli.main(["bench", "gpu", "--rows", "1", "3", "--length", "24", "--save-result", str(file)])
    return code, json.loads(file.read_text())


def test_a_dry_run_goes_through_all_parts_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(tmp_path / "gpu.json")
    assert code == 0 and capsys.readouterr().out.startswith("no CUDA device: a dry run of a tiny network")
    assert found["setting"]["dry"] and found["setting"]["dtype"] == "torch.float32"
    assert found["parity"] == {"graph": "5 of 5", "eager": "5 of 5", "mask": "5 of 5"}
    host = found["host"]
    assert host["streams"] == 8 and host["tokens_s"] == pytest.approx(8e3 / host["step_ms"], rel=0.1)
    assert host["step_ms"] > 0.9 * host["cost_ms"] > 0 and host["server_us"] > 0
    assert {f"{count} {name}" for count in (1, 4) for name in ("first_ms", "tokens_s")} <= found["http 1B"].keys()
    ticks = ("server_us", "loop_us")  # of 10 ms: a short run may have none
    assert all(value > 0 for name, value in found["http 1B"].items() if not name.endswith(ticks))
    for rows in (1, 3):
        step = found[f"step {rows}"]
        assert {f"{way}_ms" for way in ("graph", "eager", "mask", "turn", "floor")} <= step.keys()
        assert step["graph_share_of_floor"] == pytest.approx(step["floor_ms"] / step["graph_ms"])
        assert found[f"generate {rows}"]["ratio"] > 0
    assert len(found["prefill 512"]["new_ms"]) == 4 and found["prefill 2048"]["tokens_s"] > 0
    assert len(found["copies"]["out_ms"]) == 3


def test_a_part_may_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu.GpuParts, "step", fail)
    monkeypatch.setattr(gpu, "measure_host", dict)
    for part in ("parity", "generate"):
        monkeypatch.setattr(gpu.GpuParts, part, lambda *_: {})
    monkeypatch.setattr(gpu, "serve_random", lambda *_: {})
    code, found = run(tmp_path / "gpu.json")
    assert code == 1 and found["step 1"] == {"failed": "OutOfMemoryError: CUDA out of memory"}
    assert "failed OutOfMemoryError" in capsys.readouterr().out and found["prefill 512"]["new_ms"]


def test_tests_of_the_gpu_run_anywhere_and_end_well_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = gpu.run_tests()
    assert found["exit code"] == 0 and "skipped" in found["end"]


def test_no_part_begins_when_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "LIMIT", 0.0)
    code, found = run(tmp_path / "gpu.json")
    assert code == 0 and found["parity"] == found["bounds"] == {"left out": "no time"}


@pytest.mark.parametrize(("free", "layers"), [(80e9, 32), (24e9, 11), (1e9, 1)])
def test_the_network_has_as_many_layers_as_fit(free: float, layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (int(free), int(free)))
    assert gpu._count_layers(torch.device("cuda:0")) == layers
