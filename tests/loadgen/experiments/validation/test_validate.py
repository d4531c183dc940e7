"""`lengthwise simulate --validate` on a tiny checkpoint: its load, its plumbing, and how far apart is too far."""

import argparse
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from engine.measure.timing import Timings
from loadgen.commands import add_simulate
from loadgen.console import show_table
from loadgen.experiments.validation import validate
from loadgen.experiments.validation.play import play
from loadgen.experiments.validation.validate import QUICK, Quantity, ValidationVerdict, lengths, paced
from loadgen.simulate.figures import measure_latencies
from loadgen.simulate.flags import ValidateFlags
from loadgen.simulate.simulation import Served
from models.network.loader import LoadedModel
from models.options import read_options
from scheduler.serving_time.bilinear import Bilinear, FitErrors
from scheduler.serving_time.profile_file import Profile, write_profile
from server.cli import main as cli
from server.composition.devices import conditions_of
from server.config import ServeConfig
from tests.server.cli.commands.runner import run_command

COST = Bilinear(0, 0, 0, 0.01, 0, 0, 0, 0.002)


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"CACHE": tmp_path / "cache", "DTYPE": "float32", "DEVICE": "cpu"}
    for name, value in (settings | {"MAX_MODEL_LEN": 160, "MAX_NUM_SEQS": 4, "KV_CACHE_MEMORY": 0.01}).items():
        monkeypatch.setenv(f"LENGTHWISE_{name}", str(value))


@pytest.fixture
def profiled(tmp_path: Path, tiny_folder: Path, tiny_model: LoadedModel) -> None:
    config = ServeConfig(model=str(tiny_folder), dtype="float32", device="cpu", max_model_len=160, max_num_seqs=4)
    conditions = conditions_of(config, tiny_model)
    profile = Profile(conditions, "2026-01-01T00:00:00", "0", COST, FitErrors(0, 0, None), Timings())
    write_profile(tmp_path / "cache", profile)


LOAD = ("--quick", "--rate", "20", "--duration", "0.4", "--max-output-len", "12", "--dataset-name", "random")


@pytest.mark.usefixtures("profiled")
def test_engine_and_simulator_are_beside(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    file, left = tmp_path / "result.json", iter(range(1))

    def until(*given: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return play(*given)

    monkeypatch.setattr(validate, "play", until)
    flags = ["--validate", str(tiny_folder), *LOAD, "--strategies", "baton-pd,vs", "--save-result", str(file)]
    assert cli.main(["simulate", *flags]) == 130
    assert [one["strategy"] for one in json.loads(file.read_text())["verdicts"]] == ["baton-pd"]
    assert "baton-pd" in capsys.readouterr().out


def parse(*flags: str) -> ValidateFlags:
    parser = argparse.ArgumentParser()
    add_simulate(parser.add_subparsers(), lambda asked: 0)
    args = parser.parse_args(["simulate", "--validate", "--dataset-name", "random", *flags])
    return read_options(args, ValidateFlags)


@pytest.mark.parametrize(("flags", "size"), [((), validate.FULL), (("--quick",), QUICK)])
def test_without_a_rate_all_requests_are_there_to_probe(flags: tuple[str, ...], size: validate.RunSize) -> None:
    made = lengths(parse(*flags), context_length=10_000)
    assert len(made) == validate.PROBE and {one.arrival for one in made} == {0.0}
    assert max(one.input_length for one in made) == size.max_input


def test_a_small_context_clips_them() -> None:
    made = lengths(parse("--random-output-len", "900"), context_length=100)
    assert max(one.input_length + one.output_length for one in made) <= 100


def test_a_rate_is_kept_for_as_long_as_was_asked_for_but_not_longer() -> None:
    assert len(lengths(parse("--rate", "2", "--duration", "5"), 4096)) == 10
    assert len(lengths(parse("--rate", "2", "--quick"), 4096)) == 2 * QUICK.duration


def test_requests_come_at_the_rate() -> None:
    args = parse("--duration", "50", "--seed", "3")
    probe = lengths(args, 4096)
    made = paced(args, probe, 2.8)
    assert len(made) == round(2.8 * 50)
    assert made[-1].arrival == pytest.approx(50.0)
    assert [one.input_length for one in made[:5]] == [one.input_length for one in probe[:5]]
    assert paced(args, probe, 2.8) == made


FEW = [(["--quick"], 0.001, QUICK.least), (["--num-requests", "12"], 5.0, 12)]


@pytest.mark.parametrize(("flags", "pace", "requests"), FEW)
def test_slow_machines_serve_a_few_and_a_number_shortens_a_check(flags: list[str], pace: float, requests: int) -> None:
    args = parse(*flags)
    assert len(paced(args, lengths(args, 4096), pace)) == requests


ASKED = [((), ("vs", "magnus", "scls", "baton-pd", "lengthwise")), (("--strategies", "so"), ("so",))]


@pytest.mark.parametrize(("flags", "strategies"), ASKED)
def test_the_command_hands_over_to_the_validator(flags: tuple[str, ...], strategies: tuple[str, ...]) -> None:
    validator = Mock(return_value=7)
    code = run_command(lambda below: add_simulate(below, validator), "simulate", "--validate", "some-model", *flags)
    asked = validator.call_args.args[0]
    assert (code, asked.validate, asked.strategies) == (7, "some-model", strategies)


@pytest.mark.parametrize(("simulated", "holds"), [(9.51, True), (10.49, True), (9.4, False), (10.6, False)])
def test_five_percent_of_what_was_measured_at_the_speed_of_the_run(simulated: float, holds: bool) -> None:
    one = Quantity(real=10.0, profiled=5.0, simulated=simulated)
    assert one.holds is holds
    assert ValidationVerdict("vs", 1.0, 9, 1.0, {"mean": one, "p99": Quantity(1.0, 1.0, 1.0)}).holds is holds
    assert Quantity(1e-6, 0.0, 0.0).holds and not Quantity(0.01, 0.0, 0.0).holds, "next to nothing is nothing"


def served(*ends: float) -> list[Served]:
    """Requests of 11 tokens that came at 0 and began their answers after 1 s."""
    return [Served(0.0, 0.5, 1.0, end, 10, 11, 1, None) for end in ends]


def test_all_quantities_are_compared() -> None:
    real, slow = measure_latencies(served(2.0, 4.0)), measure_latencies(served(2.0, 8.0))
    found = validate.compare(real, real, [slow, measure_latencies(served(2.0, 6.0))])
    parts = ("mean TTFT (s)", "mean TPOT (s)", "mean JCT (s)", "p99 TTFT (s)", "p99 TPOT (s)", "p99 JCT (s)")
    assert list(found) == [*parts, "throughput (req/s)"]
    assert found["mean JCT (s)"] == Quantity(3.0, 3.0, 4.5, spread=0.5), "the mean of both simulations"
    assert found["p99 JCT (s)"] == Quantity(4.0, 4.0, 7.0, 0.10, spread=1.0)
    assert found["mean TPOT (s)"].real == pytest.approx((0.1 + 0.3) / 2)
    assert found["mean TTFT (s)"].deviation == 0.0
    assert found["throughput (req/s)"].simulated == pytest.approx((2 / 8 + 2 / 6) / 2)


def test_it_is_told_in_figures() -> None:
    one = ValidationVerdict("vs", 0.9, 40, 1.25, {"mean JCT (s)": Quantity(10.0, 8.0, 12.0)})
    told = validate.verdict_json(one)
    quantities = told.pop("quantities")
    assert told == {"strategy": "vs", "rho": 0.9, "requests": 40, "holds": False, "slowdown": 1.25}
    figures = {"real": 10.0, "profiled": 8.0, "simulated": 12.0, "bound": 0.05, "spread": 0.0}
    changes = {"profile_deviation": pytest.approx(-0.2), "deviation": pytest.approx(0.2)}
    assert quantities == {"mean JCT (s)": figures | changes}
    console = Console(width=180)
    with console.capture() as shown:
        console.print(show_table(validate.tabulate([one])))
    assert all(part in shown.get() for part in ("-20.0%", "1.25", "+20.0%", "0.9", "no"))
