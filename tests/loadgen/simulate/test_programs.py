"""Runs of agents in the simulator."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.simulated.machine import Machine
from loadgen.simulate.figures import measure_simulation
from loadgen.simulate.load import chain_turns
from loadgen.simulate.prediction import read_prediction
from loadgen.simulate.simulation import Served, Simulation, fit_parts, simulate
from loadgen.simulate.whatif import _chain_turns
from loadgen.workload.lengths import RequestLengths, load_trace
from loadgen.workload.programs import draw_runs
from scheduler.batching.batcher import BatchLimits
from scheduler.dispatcher import Dispatcher
from scheduler.options import Scheduling
from scheduler.programs.program import Program
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import STRATEGIES
from tests.loadgen.workload.test_lengths import BAILIAN

COST = Bilinear(p1=1e-4, p4=0.01, d4=0.02)


def played(trace: list[RequestLengths], strategy: str = "baton-pd", **machine: Any) -> Simulation:
    """With predictions where there is no prefix cache."""
    device = Machine(COST, 10**6, 2, 2**15, **{"prefix_cache_tokens": 10**6, **machine})
    parts = fit_parts(STRATEGIES[strategy], BatchLimits.of(Scheduling(), 8192, 2), device, COST)
    predict = None if device.prefix_cache_tokens else read_prediction("noisy:0.3").source(0)
    return simulate(parts, device, trace, predict=predict)


def test_drawn_runs_are_as_published() -> None:
    """Medians of 43 turns, of 142,000 tokens in and 444 out; 4 % of a prompt new; 86 % of pauses below a second."""
    trace = draw_runs(1000, 600.0, scale=1.0, seed=0)
    runs = [[*turns] for _, turns in groupby(trace, key=lambda one: one.run)]
    assert len(runs) == 1000 and np.median([len(turns) for turns in runs]) == pytest.approx(43, rel=0.1)
    middle = [turns[len(turns) // 2] for turns in runs]
    assert np.median([one.input_length for one in middle]) == pytest.approx(142_000, rel=0.15)
    assert np.median([one.output_length for one in trace]) == pytest.approx(444, rel=0.05)
    assert np.mean([one.pause < 1 for one in trace]) == pytest.approx(0.86, abs=0.01)
    assert np.mean([one.pause < 10 for one in trace]) == pytest.approx(0.95, abs=0.01)
    for turns in runs:
        assert all(later.input_length > one.input_length + one.output_length for one, later in pairwise(turns))


def test_a_turn_comes_a_pause_after_the_answer_and_finds_its_prompt_kept() -> None:
    turns = [RequestLengths(1.0, 640, 10), RequestLengths(1.0, 960, 10), RequestLengths(1.0, 1280, 10)]
    trace = [replace(one, run="a", pause=0.5) for one in turns]
    first, second, third = served = played(trace).requests
    assert [one.arrival for one in served] == [1.0, first.end + 0.5, second.end + 0.5]
    assert [one.cached_prompt for one in served] == [0, 640, 960]
    figures = measure_simulation(played(trace))
    assert figures["runs"] == 1 and figures["mean_run_ms"] == pytest.approx(1000 * (third.end - 1.0))
    assert figures["prefix_hits"] == (640 + 960) / (960 + 1280) and figures["mean_other_jct_ms"] is None


def test_of_runs_that_do_not_fit_some_find_their_prompts_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 runs in turn in memory for a third of them: by latest use they find next to nothing."""
    turns = [(run, turn) for run in range(30) for turn in range(1, 7)]
    trace = [RequestLengths(0.0, 256 * turn, 10, run=f"run {run}", pause=0.1) for run, turn in turns]
    hits = [measure_simulation(played(trace, prefix_cache_tokens=10_000))["prefix_hits"]]
    monkeypatch.setattr(Dispatcher, "_begin_turn", lambda self, request, program: program.begin(request.times.came))
    monkeypatch.setattr(Program, "back_within", 0.0)
    hits.append(measure_simulation(played(trace, prefix_cache_tokens=10_000))["prefix_hits"])
    assert hits[0] > 0.25 > 0.05 > hits[1]


LOADS: Mapping[str, Callable[[random.Random, int], RequestLengths]] = {
    "one after another": lambda draw, place: RequestLengths(0.4 * place, 100, 50),
    "more than is served, of unlike lengths": lambda draw, place: RequestLengths(
        draw.uniform(0.0, 60.0), draw.randint(1, 2000), min(900, int(draw.lognormvariate(4.0, 1.2)) + 1)
    ),
    "100 at once, of three clients": lambda draw, place: RequestLengths(
        60.0 * (place // 100), draw.randint(1, 300), draw.randint(1, 200), client=f"client {place % 3}"
    ),
}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_changes_for_calls_of_no_program(load: str, workers: int) -> None:
    """Servers recognize each call: one whose kind never goes on was ordered, and told its end, as a program's."""
    draw = random.Random(0)
    plain = sorted((LOADS[load](draw, place) for place in range(300)), key=lambda one: one.arrival)
    recognized = [replace(one, run=f"run {place}") for place, one in enumerate(plain)]
    served = [played(trace, "lengthwise", workers=workers, prefix_cache_tokens=0) for trace in (plain, recognized)]
    found = [repr([replace(one, run="", run_within=None) for one in each.requests]) for each in served]
    assert "foretold=Foretold(" in found[0] and found[0] == found[1]


def test_what_belongs_to_no_run_is_measured_apart() -> None:
    figures = measure_simulation(played([*draw_runs(3, 10.0, 1 / 64, seed=1), RequestLengths(2.0, 100, 10)]))
    assert figures["runs"] == 3 and figures["mean_other_jct_ms"] > 0
    assert "runs" not in measure_simulation(played([RequestLengths(2.0, 100, 10)]))


def test_ends_of_alike_runs_are_estimated_once_some_have_ended() -> None:
    trace = [
        RequestLengths(20.0 * run, 256 * turn, 10 + run * turn % 5, run=f"run {run}", pause=0.1)
        for run in range(80)
        for turn in (1, 2, 3)
    ]
    simulation = played(trace)
    figures = measure_simulation(simulation)
    assert figures["run_ends_kept"] >= 0.9 and figures["run_ends_ratio"] == pytest.approx(1.0, abs=0.5)
    assert simulation.requests[0].run_within is None and simulation.requests[-1].run_within is not None


def test_turns_of_qwen_bailian_follow_their_parents(tmp_path: Path) -> None:
    (path := tmp_path / "trace.jsonl").write_text(BAILIAN)
    first, second, *others = chain_turns(load_trace(path))
    assert first.run == second.run and second.pause == 1.5
    assert first.run not in {one.run for one in others}


def test_turns_of_mooncake_are_found_by_their_blocks() -> None:
    """The last block of a prompt is no whole one, and so is another in the next turn."""
    blocks = [(1, 2, 3), (1, 9, 8), (1, 2, 4, 5), (1, 9, 7), (1, 2, 4, 6, 10)]
    trace = [RequestLengths(float(at), 512 * len(one), 5, blocks=one) for at, one in enumerate(blocks)]
    a, b, c, d, e = chain_turns(trace)
    assert a.run == c.run == e.run != b.run and d.run != a.run
    assert [one.pause for one in (a, c, e)] == [0.0, 2.0, 2.0]


def test_a_journals_runs_are_replayed_turn_by_turn() -> None:
    """A call that came while another of its run was under way comes when it came."""
    served = [
        Served(arrival, arrival, arrival, end, 100, 5, 1, None, run=run)
        for arrival, end, run in ((0.0, 2.0, "a"), (1.0, 4.0, "a"), (4.5, 6.0, "a"), (5.0, 6.0, ""))
    ]
    found = [(one.arrival, one.run, one.pause) for one in _chain_turns(served)]
    assert found == [(0.0, "a", 0.0), (1.0, "", 0.0), (4.5, "a", 0.5), (5.0, "", 0.0)]
