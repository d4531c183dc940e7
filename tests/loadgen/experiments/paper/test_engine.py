"""`lengthwise paper --real` on a tiny checkpoint: what is played is what was asked, and figures are what it gave."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.measure.timing import Timings
from engine.messages import Tally
from loadgen.experiments.paper import engine as paper_engine
from loadgen.experiments.paper.engine import EnginePlayer, record_course
from loadgen.experiments.paper.plan import NotHere
from loadgen.experiments.paper.ssjf import experiments
from loadgen.experiments.paper.ssjf import place as ssjf
from loadgen.experiments.paper.stage import limits
from loadgen.experiments.paper.trial import Course, Trial, trial
from loadgen.experiments.playing import random_prompts
from loadgen.experiments.real_engine import Engine, new_executors
from loadgen.simulate.node import Machine
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.simulation import Simulation
from loadgen.workload.lengths import Lengths
from models.network.loader import LoadedModel, LoadError
from models.text import Text
from scheduler.serving_time.bilinear import Bilinear, FitErrors
from scheduler.serving_time.profile_file import Profile, write_profile
from scheduler.strategy import STRATEGIES
from server.cli import main as cli
from server.cli.config import ServeConfig
from server.composition.devices import conditions_of

COST = Bilinear(0, 0, 0, 0.001, 0, 0, 0, 0.001)
CONTEXT = 64
TRACE = [Lengths(0.0, 6, 10), Lengths(0.0, 9, 3), Lengths(0.0, 4, 8), Lengths(0.0, 9, 1)]
MACHINE = Machine(COST, 8 * CONTEXT, 8, CONTEXT, max_prefill_tokens=512)


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    for name, value in {"CACHE": tmp_path / "cache", "DTYPE": "float32", "DEVICE": "cpu"}.items():
        monkeypatch.setenv(f"LENGTHWISE_{name}", str(value))
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def engine(tiny_model: LoadedModel, tiny_text: Text, tiny_folder: Path) -> Engine:
    config = ServeConfig(model=str(tiny_folder), dtype="float32", device="cpu", executors=2)
    return Engine(config, (tiny_model, tiny_model.twin()), tiny_text, COST)


@pytest.fixture
def profiled(tmp_path: Path, tiny_folder: Path, tiny_model: LoadedModel) -> None:
    for executors in (1, 2):
        config = ServeConfig(model=str(tiny_folder), dtype="float32", device="cpu", executors=executors)
        profile = Profile(
            conditions_of(config, tiny_model), "2026-01-01T00:00:00", "0", COST, FitErrors(0, 0, None), Timings((), ())
        )
        write_profile(tmp_path / "cache", profile)


@pytest.fixture
def trace_file(tmp_path: Path) -> str:
    file = tmp_path / "trace.csv"
    lines = [f"2023-11-16 18:00:{number:02},{20 + 17 * number},{5 + 9 * number}" for number in range(60)]
    file.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    return str(file)


def course(name: str, machine: Machine = MACHINE, **bounds: object) -> Course:
    return Course(STRATEGIES[name], machine, limits(**bounds), 16, Prediction(0.2))


def recorded(engine: Engine, asked: Course, trace: list[Lengths]) -> tuple[Simulation, float]:
    fitted = paper_engine._fitted(engine, asked)
    prompts = random_prompts(trace, engine.vocabulary, 0)
    with new_executors(fitted) as rig:
        return rig.run(record_course(asked, rig.executors, rig.relay, trace, prompts, 0, lambda ended: None))


def test_a_static_batch_is_recorded_to_the_token(engine: Engine) -> None:
    done, early = recorded(engine, course("vs"), TRACE)
    assert [(one.input_length, one.output_length) for one in done.requests] == [
        (one.input_length, one.output_length) for one in TRACE
    ]
    (worker,) = done.workers
    # prompts are padded to the longest of the batch, and every row computes until the longest answer ends; the one that
    # ended with its first token needs no slot
    windows = range(10, 19)
    reads, pad_reads, invalid_reads = 3 * sum(windows), 9 * 3 + 7 * 5, sum(windows[2:]) + sum(windows[7:])
    assert worker.tally == Tally(28, 8, 22, 7 + 2, reads, pad_reads, invalid_reads)
    assert worker.row_decode / worker.decode == pytest.approx(3)
    assert early == 0.0
    assert all(one.end >= worker.completion for one in done.requests), "answers return when the last row has ended"
    assert all(one.runs == 1 and one.arrival == 0.0 < one.started <= one.first_token for one in done.requests)


def test_slices_are_counted_on_both_executors(engine: Engine) -> None:
    trace = [replace(one, output_length=9) for one in TRACE]
    two = replace(MACHINE, workers=2)
    done, early = recorded(engine, course("so", two, slice_length=6, recompute=True, max_batch_size=2), trace)
    assert [one.runs for one in done.requests] == [2] * 4, "seven tokens, then two"
    assert 0 < early < 1, "slices of two tokens that are left end before their time"
    assert all(worker.completion > 0 for worker in done.workers)
    assert sum(worker.tally.generated for worker in done.workers) == 36


@pytest.mark.parametrize(
    ("name", "sigma"), [("sjf-oracle-dynamic", 0.0), ("ssjf-dynamic", 0.2), ("fcfs-dynamic", None)]
)
def test_a_strategy_is_told_as_much_as_it_asks_for(engine: Engine, name: str, sigma: float | None) -> None:
    done, _ = recorded(engine, course(name), TRACE)
    told = [one.predicted_length for one in done.requests]
    if sigma is None:
        assert told == [None] * 4
    else:
        assert (told == [one.output_length for one in TRACE]) is (sigma == 0.0)
        assert all(one is not None and one >= 1 for one in told)


def test_figures_are_those_of_the_record(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[Simulation, float]] = []

    def keep(done: Simulation, early: float) -> Trial:
        kept.append((done, early))
        return trial(done, early)

    monkeypatch.setattr("loadgen.experiments.paper.engine.trial", keep)
    monkeypatch.setattr("loadgen.experiments.paper.engine.measure_theft", lambda: lambda: 0.07)
    ended: list[int] = []
    made = EnginePlayer(engine)(course("vs"), TRACE, 0, ended.append)
    (done, _) = kept[0]
    assert ended == [1, 2, 3, 4], "what warmed it up is not told"
    assert (made.requests, made.invalid, made.pad) == (4, 9 / 4, 2)
    assert made.stolen == pytest.approx(7), "percent of the processors' time"
    assert made.throughput == pytest.approx(4 / done.duration)
    assert made.total_tokens == pytest.approx((22 + 9) / done.duration)
    assert made.mean == pytest.approx(sum(one.end - one.arrival for one in done.requests) / 4)


def test_ctrl_c_ends_a_run_and_its_threads(engine: Engine) -> None:
    with pytest.raises(KeyboardInterrupt):
        EnginePlayer(engine)(
            course("baton-pd"), TRACE, 0, lambda ended: signal.raise_signal(signal.SIGINT) if ended == 1 else None
        )
    assert not [one for one in threading.enumerate() if one.name.startswith("executor-")]


@pytest.mark.usefixtures("profiled")
def test_vsq_is_measured_beside_the_others(
    tiny_folder: Path, trace_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    flags = ("--real", "--model", str(tiny_folder), "--length-scale", "0.03125", "--duration", "0.05", "--loads", "2")
    code = cli.main(
        ["paper", "magnus", *flags, "--trace", trace_file, "--experiments", "main", "--save-result", str(file)]
    )
    shown = capsys.readouterr()
    assert code == 0, shown.err
    document = json.loads(file.read_text())
    made = document["experiments"]["main"]
    assert [run["strategy"] for run in made["runs"]] == ["vs", "ccb", "ccb-padded", "vsq", "magnus"]
    assert all(run["point"] == "2 ×" and run["mean"] > 0 for run in made["runs"])
    rows = {row["what"]: row for row in made["rows"]}
    assert rows["magnus over vsq: throughput"]["measured"].keys() == {"2 ×"}
    assert not any("skipped" in row for row in made["rows"])
    assert document["real"]["length_scale"] == 0.03125 and not document["interrupted"]
    assert "vsq, 2 ×: " in shown.err and "published" in shown.out
    for word in (tiny_folder.name, "float32", "1 × ", "10 for vsq", "times the"):
        assert word in " ".join(made["setting"].split())


@pytest.mark.usefixtures("profiled")
@pytest.mark.parametrize(("paper", "experiment", "executors"), [("scls", "ablation", 2), ("ssjf", "sizes", 1)])
def test_other_papers_run_as_well(
    paper: str,
    experiment: str,
    executors: int,
    tiny_folder: Path,
    trace_file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(experiments, "ORDERS", ("fcfs", "ssjf"))
    monkeypatch.setattr(ssjf, "REAL", replace(ssjf.REAL, sizes=(2,)))
    file = tmp_path / "result.json"
    flags = ("--real", "--model", str(tiny_folder), "--length-scale", "0.03125", "--duration", "0.02", "--rounds", "2")
    saved = ("--executors", f"{executors}", "--trace", trace_file, "--experiments", experiment)
    assert cli.main(["paper", paper, *flags, *saved, "--save-result", str(file)]) == 0, capsys.readouterr().err
    made = json.loads(file.read_text())["experiments"][experiment]
    assert made["rows"] and all(len(run["rounds"]) == 2 for run in made["runs"])
    assert "±" in capsys.readouterr().out


@pytest.mark.usefixtures("profiled")
def test_an_interrupt_leaves_what_ran(
    tiny_folder: Path,
    trace_file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, left = tmp_path / "result.json", iter(range(2))
    play = EnginePlayer.__call__

    def until(self: EnginePlayer, *args: object) -> Trial:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return play(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(EnginePlayer, "__call__", until)
    flags = ("--real", "--model", str(tiny_folder), "--length-scale", "0.03125", "--duration", "0.05")
    code = cli.main(["paper", "magnus", *flags, "--trace", trace_file, "--save-result", str(file)])
    assert code == 130
    document = json.loads(file.read_text())
    assert document["interrupted"] and list(document["experiments"]) == ["main"]
    assert [run["strategy"] for run in document["experiments"]["main"]["runs"]] == ["vs"]
    assert "interrupted" in capsys.readouterr().out


def test_a_machine_without_kernels_for_vsq_says_so(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(config: ServeConfig) -> None:
        assert (config.strategy, config.quantization) == ("vsq", "auto")
        raise LoadError("no kernels here")

    monkeypatch.setattr(paper_engine, "load_models", refuse)
    with pytest.raises(NotHere, match="no kernels here"):
        EnginePlayer(engine)(course("vsq"), TRACE, 0, lambda ended: None)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("scls", "--real", "--executors", "2"), " --executors 2` first"),
        (("magnus", "--real", "--rates", "2"), "--rates is for the simulator: with --real give --loads"),
        (("magnus", "--real", "--scale", "0.5"), "--scale is for the simulator"),
        (("magnus", "--real", "--experiments", "nonsense"), "nonsense is none of main, ablation"),
        (("magnus", "--real", "--length-scale", "4"), "run `lengthwise profile "),
        (("magnus", "--loads", "2"), "--loads is for the real engine: add --real"),
        (("magnus", "--length-scale", "2"), "--length-scale is for the real engine"),
    ],
)
def test_mistakes_are_told_with_their_remedy(
    flags: tuple[str, ...], message: str, tiny_folder: Path, trace_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ("--model", str(tiny_folder)) if "--real" in flags else ()
    assert cli.main(["paper", *flags, *model, "--trace", trace_file]) == 1
    *_, error = capsys.readouterr().err.splitlines()
    assert error.startswith("lengthwise: error: ") and message in error


@pytest.mark.usefixtures("profiled")
def test_lengths_beyond_the_models_context_are_refused(
    tiny_folder: Path, trace_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--real", "--model", str(tiny_folder), "--length-scale", "1", "--trace", trace_file)
    assert cli.main(["paper", "magnus", *flags]) == 1
    *_, error = capsys.readouterr().err.splitlines()
    assert (
        error.startswith("lengthwise: error: ") and "exceed the model's context of 512: give a --length-scale" in error
    )
