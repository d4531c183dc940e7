"""The papers' experiments on the real engine: how memory, lengths, rates and bounds are scaled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadgen.experiments.paper.hardware import Hardware
from loadgen.experiments.paper.load import Pool, shortened
from loadgen.experiments.paper.plan import Plan, carry_out
from loadgen.experiments.paper.run import PAPERS
from loadgen.experiments.paper.scls.experiments import HF
from loadgen.experiments.paper.trial import run_trial
from loadgen.workload.lengths import Lengths
from scheduler.serving_time.bilinear import Bilinear
from tests.loadgen.experiments.paper.parts import COST, HARDWARE, POOL, Scripted, stage_of, trial_of

SERVED = 10.0


def plan(paper: str, experiment: str, **changes: Any) -> Plan:
    """The experiment on the real engine, where every baseline serves the same."""
    stage = stage_of(Scripted(lambda course, seed: trial_of(SERVED)), replace(HARDWARE, **changes))
    return PAPERS[paper].experiments[experiment](stage)


@pytest.mark.parametrize("paper", ["magnus", "scls", "ssjf"])
def test_every_row_comes_out_of_runs_on_simulated_executors(paper: str) -> None:
    for name in PAPERS[paper].names(real=True):
        on = stage_of(run_trial, replace(HARDWARE, duration=0.5))
        made = carry_out(PAPERS[paper].experiments[name](on), on.play)
        assert made.lines and made.rows
        assert "a model" in made.plan.setting and "times 0.125" in made.plan.setting
        assert not any("skipped" in row.document for row in made.rows)


def test_magnus_has_the_papers_batches_and_vsq_room_for_its_own() -> None:
    runs = plan("magnus", "main").runs
    capacity = {run.strategy: run.machine.capacity_tokens for run in runs}
    assert capacity == {"vs": 7 * 256, "ccb": 7 * 256, "ccb-padded": 7 * 256, "vsq": 10 * 256, "magnus": 7 * 256}
    assert {run.load.rate for run in runs} == {3 * SERVED, 8 * SERVED}
    assert {run.load.count for run in runs} == {120, 320}, "four seconds of arrivals"
    assert {run.limits.wma_threshold for run in runs} == {781}, "50,000 over the square of 8"
    assert {run.machine.context_length for run in runs} == {256}


def test_runs_have_600_requests_unless_the_user_says_otherwise() -> None:
    counts = {
        name: {run.load.count for run in plan(name, "main" if name != "ssjf" else "rates", duration=None).runs}
        for name in ("magnus", "scls", "ssjf")
    }
    assert counts == {name: {600} for name in counts}
    assert {run.load.count for run in plan("scls", "slices", duration=None, requests=7).runs} == {7}


@pytest.mark.parametrize("hardware", [None, HARDWARE], ids=["simulated", "real"])
def test_magnus_takes_the_users_bound_of_wasted_accesses(hardware: Hardware | None) -> None:
    stage = stage_of(Scripted(), hardware, wma_threshold=321)
    made = PAPERS["magnus"].experiments["main"](stage)
    assert {run.limits.wma_threshold for run in made.runs} == {321} and "Φ 321;" in made.setting


def test_scls_slices_and_intervals_are_scaled() -> None:
    run = plan("scls", "main").runs[0]
    assert run.limits.slice_length == 16 and run.limits.recompute and run.limits.max_batch_size == 16
    assert run.machine.capacity_tokens == 28 * 256, "what equation 9 leaves on the paper's machine, in rows"
    assert run.limits.min_interval is not None and isinstance(HF.machine.cost, Bilinear)
    share = run.limits.min_interval / COST.serve(16, 128, 16)
    assert share == pytest.approx(6.0 / HF.machine.cost.serve(16, 1024, 128))
    lengths = [one.limits.slice_length for one in plan("scls", "slices").runs]
    assert lengths == [4, 16, 64]


def test_scls_on_deepspeed_asks_algorithm_2_whether_a_slice_fits() -> None:
    """Its bounds of rows in the middle, 22, used to be left out."""
    scripted = Scripted()
    stage = stage_of(scripted, None)
    for name in ("main-ds", "ablation-ds", "main"):
        carry_out(PAPERS["scls"].experiments[name](stage), stage.play)
    rules = {(course.strategy.name, course.strategy.memory) for course, *_ in scripted.asked}
    assert rules == {
        *((name, "deepspeed") for name in ("pm", "ab", "lb", "scls")),
        *(("scls", "slice"), ("sls", "fixed"), ("so", "fixed"), ("ils", "whole"), ("ils-padded", "whole")),
    }


def test_scls_keeps_k_and_v_or_reads_anew_under_the_same_load() -> None:
    made = plan("scls", "keeping", cost=replace(COST, c1=5e-6, c0=1e-3))
    assert [run.limits.recompute for run in made.runs] == [True, False]
    assert len({(run.strategy, run.load, replace(run.limits, recompute=False)) for run in made.runs}) == 1
    assert (
        "cost 0.005 ms a token and 1 ms a row to copy, and 0.1 ms a token and 0 ms a row to read anew" in made.setting
    )
    assert "K and V read anew each slice" not in made.setting


@pytest.mark.parametrize(("executors", "counts"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8])])
def test_scls_puts_the_whole_load_on_fewer_executors(executors: int, counts: list[int]) -> None:
    runs = plan("scls", "workers", executors=executors).runs
    assert [run.machine.workers for run in runs] == counts
    assert len({run.load for run in runs}) == 1


def test_ssjf_has_its_rows_and_gaps() -> None:
    runs = plan("ssjf", "burstiness", duration=None, requests=30).runs
    assert len({run.strategy for run in runs}) == 9
    assert {run.machine.max_num_seqs for run in runs} == {4}
    assert {run.machine.context_length for run in runs} == {128 + 64}
    assert {(run.load.rate, run.load.burstiness, run.load.count) for run in runs} == {(6.0, 1.0, 30), (6.0, 1 / 16, 30)}
    sizes = plan("ssjf", "sizes", loads=(3.0,)).runs
    assert {(run.machine.max_num_seqs, run.limits.max_batch_size) for run in sizes} == {(2, 2), (8, 8)}
    assert {run.load.rate for run in sizes} == {30.0}


def test_ssjf_is_offered_as_its_authors_count_in_the_simulator_alone() -> None:
    names = ["rates-authors", "burstiness-authors", "rounds-authors"]
    assert {*names} < {*PAPERS["ssjf"].names(real=False)}
    assert PAPERS["ssjf"].names(real=True) == ["rates", "burstiness", "sizes", "rounds"]
    stage = stage_of(
        Scripted(lambda course, seed: trial_of(first_quarter=3.0 if "fcfs" in course.strategy.name else 6.0)), None
    )
    made = {name: carry_out(PAPERS["ssjf"].experiments[name](stage), stage.play) for name in ("burstiness", *names)}
    ours, theirs = made["burstiness"].plan.runs, made["burstiness-authors"].plan.runs
    assert {(run.load.rate, run.load.sorted_gaps) for run in ours} == {(0.19, False)}
    assert {(run.load.rate, run.load.sorted_gaps) for run in theirs} == {(0.03, True)}
    assert not any(run.load.sorted_gaps for run in made["rates-authors"].plan.runs), (
        "those gaps are a Poisson process's"
    )
    for name in names:
        assert {row.measured for row in made[name].rows if "throughput" in row.what} == {"2.00×"}
        assert "first quarter to be answered" in made[name].plan.setting


def test_ssjf_takes_a_traces_times_where_there_are_any() -> None:
    stage = stage_of(Scripted(), None)
    [row] = PAPERS["ssjf"].experiments["azure-times"](stage).others
    assert "give --trace" in row.measured
    stage.pool = Pool(tuple(Lengths(3.0 * place, 5, 5) for place in range(60)), "with times")
    runs = PAPERS["ssjf"].experiments["azure-times"](stage).runs
    assert runs and all(run.load.own_times for run in runs)


def test_ssjf_rounds_differ_in_predictions_alone() -> None:
    made = plan("ssjf", "rounds", loads=(2.0, 3.0))
    assert {run.load.rate for run in made.runs} == {20.0}
    errors = {run.point: run.prediction.sigma or 0.0 for run in made.runs if run.prediction is not None}
    assert list(errors) == ["round 1, 61.9% right", "round 2, 60.0% right"]
    assert 0 < errors["round 1, 61.9% right"] <= errors["round 2, 60.0% right"]
    assert len(made.runs) == len({(run.strategy, run.point) for run in made.runs}) == 2 * 9
    assert "right one of 5 classes in the share that each round's name tells" in made.setting


def test_lengths_shrink_in_proportion_and_never_vanish() -> None:
    made = shortened(POOL, 0.1)
    assert [(one.input_length, one.output_length) for one in made.lengths[:3]] == [(1, 1), (1, 1), (2, 2)]
    assert min(one.input_length for one in made.lengths) == 1
    assert "times 0.1" in made.source
