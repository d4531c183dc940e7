"""`lengthwise whatif` on a journal of a simulated server, which a replay must find again."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from engine.measure.timing import Timings
from loadgen.load.arrivals import Arrivals, arrival_times
from loadgen.simulate.node import Machine
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.simulation import simulate
from loadgen.simulate.speed_curve import SpeedCurve
from loadgen.whatif.replay import Replay, read_replay
from loadgen.whatif.report import find_better, write_sentences
from loadgen.whatif.trials import Setting, play, try_all
from loadgen.workload.lengths import Lengths
from scheduler.assembly import assemble
from scheduler.batching.batcher import Limits
from scheduler.journal.file import RequestEntry, append, connect
from scheduler.options import Scheduling
from scheduler.serving_time.bilinear import Bilinear, FitErrors
from scheduler.serving_time.profile_file import Conditions, Profile, write_profile
from scheduler.strategy import STRATEGIES
from server.cli.commands import whatif as whatif_command
from tests.scheduler.entries import request_entry
from tests.server.cli.commands.runner import run_command

run = partial(run_command, whatif_command.add_parser, "whatif")

PRICES = Bilinear(p1=1e-4, p2=0.0, p3=0.0, p4=0.01, d1=1e-6, d2=1e-3, d3=0.0, d4=0.01)
SLOWDOWN = 1.5
"""How much slower the server was than its learned prices say."""

MACHINE = Machine(
    PRICES, capacity_tokens=4 * 600, max_num_seqs=4, context_length=600, max_prefill_tokens=512, runs_ahead=True
)


def served_by(strategy: str) -> list[RequestEntry]:
    """Entries of 80 requests, nine of ten short, that come faster than first come, first served would like."""
    random = np.random.default_rng(0)
    times = arrival_times(Arrivals(7.0, 1.0), 80, random)
    trace = [Lengths(float(time), 20, 200 if random.random() < 0.1 else 15) for time in times]
    limits = Limits.of(Scheduling(), 512, 4).within(MACHINE.capacity_tokens, 600, 4)
    machine = replace(MACHINE, cost=PRICES.slowed(SLOWDOWN))
    done = simulate(assemble(STRATEGIES[strategy], limits, PRICES), machine, trace, 200).requests
    return [
        replace(
            request_entry(1e6 + one.end, generated=one.output_length, predicted=float(one.output_length)),
            strategy=strategy,
            input_length=one.input_length,
            max_tokens=200,
            started=one.started - one.arrival,
            first_token=one.first_token - one.arrival,
            latency=one.end - one.arrival,
        )
        for one in sorted(done, key=lambda one: one.end)
    ]


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The journal of a server with 4 slots, and the prices that it learned."""
    monkeypatch.setenv("LENGTHWISE_CACHE", str(tmp_path))
    path = tmp_path / "journal" / "journal.sqlite3"
    connection = connect(path)
    earlier = replace(request_entry(1e6 - 50.0), strategy="vs")
    silent = replace(request_entry(1e6 + 1.0, generated=0), strategy="baton-pd", first_token=None)
    append(connection, [earlier, silent, *served_by("baton-pd")])
    connection.close()
    conditions = Conditions("somewhere/tiny", "float32", "none", "a processor", 2, 512)
    errors = FitErrors(0, 0, None)
    write_profile(tmp_path, Profile(conditions, "2026-01-01T00:00:00", "0", PRICES, errors, Timings((), ())))
    return path


def test_the_strategy_that_served_comes_out_as_it_was_recorded(journal: Path) -> None:
    replay = read_replay(journal, None, 1000)
    assert (replay.strategy, replay.model, len(replay.trace), replay.left_out) == ("baton-pd", "tiny", 80, 1)
    setting = Setting(Scheduling(), MACHINE, PRICES, 512, Prediction(0.5))
    found = try_all(replay, setting, ("srpt", "vs"), lambda: None)
    assert found.slowdown == pytest.approx(SLOWDOWN, rel=0.01)
    mean, p99 = found.errors
    assert abs(mean) < 0.01 and abs(p99) < 0.05, "p99 is one request of 80"
    assert all(abs(one) < 0.05 for one in found.held_out), "it was as slow in the first half as in the second"
    better = find_better(found)
    assert better is not None and better.latencies.jct.mean < 0.9 * found.own.latencies.jct.mean
    assert f"{better.strategy}" in next(iter(write_sentences(found)))
    assert {one.sizes for one in found.others} >= {"", "half the slots", "twice the slots", "one more executor"}


@pytest.mark.parametrize("strategy", ["baton-pd", "srpt"])
def test_a_machine_that_is_slow_for_a_while_is_found_to_have_been_slow_then(strategy: str) -> None:
    """One factor for the whole run made no queue of it: a third of the mean JCT was lost where the speed changes
    threefold. Each row's part of an iteration is priced, so that a slower machine runs more rows as well."""
    prices = Bilinear(p1=0.0, p2=0.0, p3=0.0, p4=0.005, d1=0.0, d2=0.002, d3=0.0, d4=1e-4)
    random = np.random.default_rng(0)
    times = arrival_times(Arrivals(8.0, 1.0), 240, random)
    trace = tuple(Lengths(float(time), 20, int(random.integers(10, 110))) for time in times)
    machine = Machine(prices, capacity_tokens=8 * 600, max_num_seqs=8, context_length=600, max_prefill_tokens=512)
    setting = Setting(Scheduling(), machine, prices, 512, Prediction(0.5))
    replay = Replay("tiny", strategy, trace, tuple(float(one.output_length) for one in trace), (), 200, 0)
    wavering = SpeedCurve.of_speeds(np.array([0.0, 6.0, 12.0, 20.0]), np.array([1.5, 0.5, 1.4, 0.6]), 26.0, 1.0)
    recorded = play(replay, replace(setting, machine=replace(machine, pace=wavering.pace)), strategy)
    found = try_all(replace(replay, recorded=recorded), setting, (), lambda: None)
    mean, p99 = found.errors
    assert abs(mean) < 0.02 and abs(p99) < 0.05
    assert abs(found.held_out[0]) > 0.05, "the first half does not tell how fast the second was"


def test_where_nothing_is_better_it_says_so(journal: Path) -> None:
    replay = read_replay(journal, "tiny", 1000)
    setting = Setting(Scheduling(), replace(MACHINE, max_num_seqs=1), PRICES, 512, Prediction(0.5))
    found = try_all(replay, setting, ("fcfs-none",), lambda: None)
    better = find_better(replace(found, others=tuple(one for one in found.others if not one.sizes)))
    assert better is None
    assert next(iter(write_sentences(replace(found, others=())))).startswith("Nothing tried here")


def test_one_command_one_page(journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, result = tmp_path / "page.html", tmp_path / "result.json"
    flags = ("--strategies", "srpt,vs", "--max-num-seqs", "4", "--max-model-len", "600")
    assert run(*flags, "--report", str(page), "--save-result", str(result)) == 0
    out = capsys.readouterr().out
    assert "baton-pd, as recorded" in out and "How far to trust this" in out and "Held out: " in out
    assert "<svg" in page.read_text() and "srpt" in page.read_text()
    told = json.loads(result.read_text())
    assert abs(told["held_out"]["mean_jct"]) < 0.05
    assert told["requests"] == 80 and told["trials"][0]["strategy"] == "baton-pd"
    assert told["trials"][0]["mean_jct_ms"] == pytest.approx(told["recorded"]["mean_jct_ms"], rel=0.02)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--strategies", "vsq"), "vsq: wants other weights"),
        (("--of", "another"), "holds 0 answered requests to another"),
        (("--journal", "/nowhere/j"), "there is no journal at /nowhere/j"),
    ],
)
@pytest.mark.usefixtures("journal")
def test_what_is_missing_is_told(flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*flags) == 1
    assert message in capsys.readouterr().err


def test_without_prices_there_is_no_replay(journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (tmp_path / "profiles").iterdir():
        file.unlink()
    assert run() == 1
    assert "there is no profile of tiny on this machine yet" in capsys.readouterr().err
