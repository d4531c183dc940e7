"""`lengthwise simulate` from its flags to the table and the file."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.measure.timing import Timings
from loadgen.commands import add_simulate
from loadgen.simulate.flags import SimulateFlags
from loadgen.simulate.load import fit_load, simulated_load
from loadgen.simulate.node import Node
from loadgen.simulate.run import machine_of
from loadgen.workload.lengths import RequestLengths
from scheduler.serving_time.bilinear import Bilinear, FitErrors
from scheduler.serving_time.profile_file import Conditions, Profile, write_profile
from tests.loadgen.workload.args import options, write_trace
from tests.server.cli.commands.runner import run_command

SHORT = ("--duration", "2", "--rate", "4", "--dataset-name", "random", "--random-input-len", "9")
COST = Bilinear(0, 0, 0, 1.0, 0, 0, 0, 0.1)


read = partial(options, SimulateFlags)
run = partial(run_command, add_simulate, "simulate")


def document_of(folder: Path, *flags: str) -> Any:
    """The file that a simulation leaves."""
    assert run(*flags, "--save-result", folder / "result.json") == 0
    return json.loads((folder / "result.json").read_text())


def keep_profile(cache: Path) -> Path:
    conditions = Conditions("model", "float32", "none", "a processor", 2, 512)
    return write_profile(cache, Profile(conditions, "2026-01-01T00:00:00", "0", COST, FitErrors(0, 0, None), Timings()))


def test_strategies_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(tmp_path, *SHORT, "--strategies", "vs,baton-pd", "--workers", "2")
    shown = capsys.readouterr().out
    assert "vs" in shown and "baton-pd" in shown and "mean JCT (s)" in shown and "%" in shown
    assert document["machine"]["workers"] == 2
    assert list(document["strategies"]) == ["vs", "baton-pd"]
    one = document["strategies"]["vs"]
    assert one["completed"] == len(one["requests"]) == 8
    assert one["mean_jct_ms"] == pytest.approx(sum(r["end"] - r["arrival"] for r in one["requests"]) / 8 * 1000)
    assert {"request_throughput", "p99_ttft_ms", "mean_batch_size", "completion_std"} <= one.keys()


@pytest.mark.parametrize("flags", [SHORT, ("--rate", "4", "--duration", "2"), (*SHORT, "--burstiness", "0.5")])
def test_the_load_is_repeatable_and_as_long_as_asked_for(flags: tuple[str, ...]) -> None:
    one, two = (simulated_load(read(*flags, "--seed", "3")) for _ in range(2))
    assert one == two != simulated_load(read(*flags, "--seed", "4"))
    assert len(one) == 8 and one[-1].arrival == pytest.approx(2.0)


def test_a_trace_keeps_its_own_times(tmp_path: Path) -> None:
    rows = (f"2023-11-16 18:00:{second:02},{second + 1},7" for second in (0, 3, 9))
    flags = ("--dataset-name", "azure", "--dataset-path", write_trace(tmp_path / "trace.csv", rows), "--duration", "5")
    assert [(one.arrival, one.input_length) for one in simulated_load(read(*flags))] == [(0.0, 1), (3.0, 4)]
    paced = simulated_load(read(*flags, "--rate", "1"))
    assert [one.input_length for one in paced] == [1, 4, 10] and paced[-1].arrival == pytest.approx(3.0)


@pytest.mark.parametrize(("bound", "most"), [((), 2048), (("--max-model-len", "512"), 512)])
def test_the_default_workload_fits(bound: Any, most: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which answers are longer than the default machine holds depends on Python's sources."""
    document = document_of(tmp_path, "--seed", "1", "--duration", "15", "--strategies", "vs,lengthwise", *bound)
    shown = capsys.readouterr().out
    cut, left_out = document["answers_cut"], document["prompts_left_out"]
    assert cut > 0 or not bound
    said = f"Of 300 requests, {left_out} are dropped and {cut} cut: at most {most} tokens fit"
    assert (said in shown) is (cut + left_out > 0)
    for one in document["strategies"].values():
        lengths = [request["input_length"] + request["output_length"] for request in one["requests"]]
        assert len(lengths) == 300 - left_out and lengths.count(most) >= cut and max(lengths) <= most


def test_a_load_that_fits_is_left_as_it_is() -> None:
    requests = [RequestLengths(0.0, 10, 20), RequestLengths(1.0, 15, 15)]
    assert fit_load(requests, 30) == (requests, 0, 0)
    assert fit_load(requests, 29) == ([RequestLengths(0.0, 10, 19), RequestLengths(1.0, 15, 14)], 2, 0)
    assert fit_load(requests, 15) == ([RequestLengths(0.0, 10, 5)], 1, 1)


def test_equal_seeds_give_equal_tables_that_name_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for seed in ("3", "3", "4"):
        assert run(*SHORT, "--seed", seed, "--strategies", "baton-pd,lengthwise") == 0
        shown.append(" ".join(capsys.readouterr().out.split()))
    assert shown[0] == shown[1] != shown[2]
    assert "a100-llama2-13b-hf: 8 x 256 rows, 59326 tokens; 4 requests/s, seed 3, prediction noisy:0.3" in shown[0]
    assert "Longest job completion time (s)" not in shown[0] and "All figures: --all" in shown[0]


@pytest.mark.parametrize("strategy", ["lengthwise", "scls"])
def test_without_a_profile_it_learns(capsys: pytest.CaptureFixture[str], strategy: str) -> None:
    assert run(*SHORT, "--no-profile", "--strategies", strategy) == 0
    assert "a100-llama2-13b-hf, no profile: " in capsys.readouterr().out


@pytest.mark.parametrize(("lines", "code"), [(8, 0), (7, 1), (9, 1)])
def test_each_request_needs_a_length(tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: int, code: int) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("5\n" * lines)
    assert run(*SHORT, "--prediction", f"file:{file}", "--strategies", "lengthwise") == code
    assert (f"holds {lines} lengths for 8 requests" in capsys.readouterr().err) is bool(code)


@pytest.mark.parametrize("by_name", [True, False])
def test_a_profile_is_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_name: bool) -> None:
    monkeypatch.setenv("LENGTHWISE_CACHE", str(tmp_path))
    path = keep_profile(tmp_path)
    cost = "profile" if by_name else path
    machine = machine_of(read("--cost", cost, "--capacity-tokens", "5000", "--max-num-seqs", "9"))
    held = (machine.cost, machine.capacity_tokens, machine.context_length, machine.max_num_seqs)
    assert held == (COST, 5000, 5000, 9)


def test_a_profile_needs_a_capacity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--cost", keep_profile(tmp_path)) == 2
    assert "--capacity-tokens" in capsys.readouterr().err


def test_one_node_is_never_asked_for_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked every second, and weighs all that waits: 8,000 requests far above capacity took 42 s, not 4."""
    monkeypatch.setattr(Node, "load", lambda node: pytest.fail("asked for its load"))
    assert run(*SHORT, "--strategies", "baton-pd") == 0


def test_several_nodes_stand_behind_a_router(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--strategies", "baton-pd", "--workers", "2", "--nodes", "3", "--router", "pow2")
    document = document_of(tmp_path, *SHORT, *flags)
    assert "3 nodes, router pow2, each 2 x" in " ".join(capsys.readouterr().out.split())
    assert (document["nodes"], document["router"]) == (3, "pow2")
    assert len(document["strategies"]["baton-pd"]["workers"]) == 6
