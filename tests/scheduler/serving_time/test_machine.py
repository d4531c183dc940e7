"""The times of steps, learned while serving: from a few steps, from noisy ones, on a machine that changes."""

import logging
import random
from dataclasses import dataclass, replace
from itertools import product

import pytest
from hypothesis import given, settings, strategies as st

from engine.measure.timing import SliceTiming, Timing, Timings
from engine.messages import BatchShape, RowUpdate, StepReport, StepStats
from engine.simulated.machine import Machine
from loadgen.simulate.simulation import simulate
from loadgen.workload.lengths import RequestLengths
from scheduler.assembly import SchedulerParts, assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.options import Scheduling
from scheduler.plan import Plan
from scheduler.serving_time.bilinear import Bilinear, fit_surfaces
from scheduler.serving_time.machine import FEWEST, FEWEST_PREFILLS, INTERVAL, UNKNOWN, MachineModel, StepLearning
from scheduler.strategy import STRATEGIES
from tests.scheduler.fakes import request, worker

CPU = Bilinear(p1=2.5e-4, p2=2e-3, p3=1e-5, p4=0.02, d1=1.2e-6, d2=8e-4, d3=3e-6, d4=0.025)
"""A small model on two cores of a CPU."""

GPU = Bilinear(p1=1.667e-4, p2=0, p3=0, p4=0.02499, d1=3.385e-6, d2=0, d3=0, d4=0.02499)
"""LLaMA2-13B on an A100."""

CELLS = tuple(product((1, 4, 16), (16, 200, 2000)))


def timings(model: Bilinear) -> Timings:
    """Timings that a profiler would have measured, without noise."""
    prefill = tuple(Timing(*cell, model.prefill(*cell)) for cell in CELLS)
    decode = tuple(Timing(*cell, model.iteration(*cell)) for cell in CELLS)
    return Timings(prefill, decode, (SliceTiming(8, 100, 128, model.serve(8, 100, 128)),))


class Serving:
    """Reports of an executor that takes what a model says, by default to one that has learned nothing yet."""

    def __init__(self, model: Bilinear, learning: StepLearning | None = None) -> None:
        self.learning = learning or StepLearning(MachineModel())
        self.model = model
        self.now = 0.0
        self._step = 0

    @property
    def learned(self) -> Bilinear:
        assert self.learning.machine.model is not None
        return self.learning.machine.model

    def _report(self, seconds: float, updated: range, tally: StepStats, begun: tuple[int, ...] = ()) -> None:
        self._step += 1
        self.now += seconds
        updates = tuple(RowUpdate(row_id, (1,)) for row_id in updated)
        report = StepReport(0, self._step, updates, BatchShape(), seconds, begun=begun, tally=tally)
        self.learning.receive(report, self.now)

    def decode(self, rows: int, columns: int, factor: float = 1.0) -> None:
        tally = StepStats(generated=rows, reads=rows * columns)
        self._report(factor * self.model.iteration(rows, columns), range(rows), tally)

    def prefill(self, rows: int, length: int) -> None:
        begun = range(100, 100 + rows)
        tally = StepStats(prompt=rows * length, generated=rows)
        self._report(self.model.prefill(rows, length), begun, tally, tuple(begun))

    def serve(self, seconds: float, rng: random.Random) -> None:
        """A mixed load for so long."""
        end = self.now + seconds
        while self.now < end:
            rows = rng.choice((1, 2, 4, 8, 16))
            self.prefill(min(rows, 4), rng.randint(20, 400))
            for _ in range(10):
                self.decode(rows, rng.randint(20, 800))


def assert_near(found: Bilinear, true: Bilinear, share: float) -> None:
    """Every step of the range that was served is within a share of its true time."""
    for rows, length in product((1, 4, 16), (40, 200, 600)):
        assert found.iteration(rows, length) == pytest.approx(true.iteration(rows, length), rel=share)
        assert found.prefill(min(rows, 4), length) == pytest.approx(true.prefill(min(rows, 4), length), rel=share)


# From the first minute on


@dataclass(frozen=True)
class NoisyCost:
    """A machine whose steps vary by a tenth, and of which one in fifty is interrupted for long."""

    model: Bilinear

    def prefill(self, rows: int, length: int) -> float:
        return self.model.prefill(rows, length) * self._noise("prefill", rows, length)

    def decode(self, rows: int, length: float, iterations: int) -> float:
        return self.model.decode(rows, length, iterations) * self._noise("decode", rows, length)

    def copy(self, length: int) -> float:
        return 0.0

    def _noise(self, *step: object) -> float:
        rng = random.Random(repr(step))
        return rng.lognormvariate(0, 0.1) * (10 if rng.random() < 0.02 else 1)


@pytest.mark.parametrize(("model", "rate"), [(CPU, 2.0), (GPU, 8.0)])
@pytest.mark.parametrize("strategy", ["baton-pd", "lengthwise"])
def test_after_a_minute_of_mixed_load_prices_are_within_15_percent(model: Bilinear, rate: float, strategy: str) -> None:
    rng, arrival, trace = random.Random(1), 0.0, []
    while arrival < 60:
        arrival += rng.expovariate(rate)
        prompt, answer = 1 + int(rng.lognormvariate(4.5, 1)) % 1000, 1 + int(rng.lognormvariate(4, 0.8))
        trace.append(RequestLengths(arrival, prompt, answer))
    machine = Machine(NoisyCost(model), capacity_tokens=32_000, max_num_seqs=32, context_length=2048)
    limits, kept = BatchLimits(group_tokens=2048, prefill_ahead=2).within(32_000, 2048, 32), []
    learning = StepLearning(MachineModel(), keep=lambda *learned: kept.append(learned))
    simulate(assemble(STRATEGIES[strategy], limits, learning), machine, trace, 1000)
    learning.close()
    found, served = kept[-1]
    assert len(served.prefill) > 5 and len(served.decode) > 10
    for one in served.prefill:
        assert found.prefill(one.rows, one.length) == pytest.approx(model.prefill(one.rows, one.length), rel=0.15)
    for one in served.decode:
        assert found.iteration(one.rows, one.length) == pytest.approx(model.iteration(one.rows, one.length), rel=0.15)


def test_a_few_steps_tell_nothing() -> None:
    serving = Serving(CPU)
    machine = serving.learning.machine
    for _ in range(FEWEST_PREFILLS):
        serving.prefill(1, 100)
    for _ in range(FEWEST - 1):
        serving.decode(2, 100)
    serving.now += INTERVAL
    assert machine.estimate(1, 10, 10) == machine.estimate(8, 90, 10) == UNKNOWN.d4 * 10
    serving.decode(2, 100)
    assert serving.learning.learner.changes == 1 and machine.estimate(1, 10, 10) != machine.estimate(8, 90, 10)


def test_steps_of_one_kind_give_prices_that_are_neither_negative_nor_beyond_proportion() -> None:
    """The costs of rows and of columns cannot be told apart then, and are shared out."""
    serving, once = Serving(CPU), CPU.iteration(1, 150)
    for _ in range(20):
        serving.prefill(1, 100)
        serving.decode(1, 150)
    serving.now += INTERVAL
    serving.decode(1, 150)
    assert serving.learned.iteration(1, 150) == pytest.approx(once, rel=0.01)
    assert once <= serving.learned.iteration(16, 1500) <= 160 * once


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 4000), st.floats(1e-6, 1e3)), min_size=1, max_size=60))
def test_whatever_steps_took_no_price_is_negative(steps: list[tuple[int, int, float]]) -> None:
    serving = Serving(CPU)
    for rows, columns, factor in steps:
        serving.prefill(rows, columns)
        serving.decode(rows, columns, factor)
    model = serving.learning.machine.model
    assert model is None or 0 <= model.serve(1, 1, 1) <= model.serve(64, 10_000, 1000) < float("inf")


def test_steps_that_the_host_interrupted_count_for_nothing() -> None:
    serving, rng = Serving(CPU), random.Random(0)
    for _ in range(6):
        serving.serve(5.0, rng)
        serving.decode(4, 100, factor=1000.0)
        serving.decode(1, 30, factor=1000.0)
    serving.serve(INTERVAL, rng)
    assert_near(serving.learned, CPU, 0.05)


SHARED = Bilinear(p1=3e-4, p2=1e-3, p4=0.01, d1=1.2e-6, d2=2.5e-4, d4=0.007)
"""A small model on two cores, whose steps read the weights once for all rows."""


def speed(model: Bilinear, rows: int) -> float:
    return rows / model.iteration(rows, 512)


@pytest.mark.parametrize("seed", range(4))
def test_prompts_whose_beginning_was_kept_do_not_slow_the_machine_down(seed: int) -> None:
    """A kept prompt counts its unread tokens only. Where such prefills came by turns with others, all cells, those of
    decode steps too, went up and down with them: a step of 7 ms was learned as one of 2, or of 90."""
    serving, rng = Serving(SHARED), random.Random(seed)
    for _ in range(20):
        serving.model = rng.choice((SHARED, SHARED.slowed(20.0)))
        for _ in range(12):
            serving.prefill(1, 50)
        serving.model = SHARED
        for _ in range(6):
            serving.decode(rng.choice((1, 8)), rng.randint(40, 60))
        serving.now += INTERVAL
    for rows in (1, 8):
        assert serving.learned.iteration(rows, 50) == pytest.approx(SHARED.iteration(rows, 50), rel=0.1)


@pytest.mark.parametrize(("share", "below"), [(0.2, 100), (0.5, 1000), (2.0, 1000)])
def test_a_few_cells_that_are_far_off_do_not_rule(share: float, below: int) -> None:
    measured = timings(SHARED)
    factors = [share if one.rows == 1 and one.length < below else 1.0 for one in measured.decode]
    wrong = [replace(one, seconds=by * one.seconds) for one, by in zip(measured.decode, factors, strict=True)]
    model = fit_surfaces(measured.prefill, wrong)
    for rows in (4, 16):
        assert speed(model, rows) == pytest.approx(speed(SHARED, rows), rel=0.2)


@pytest.mark.parametrize("known", [None, SHARED])
def test_prices_by_which_many_rows_are_no_faster_than_one_are_refused(known: Bilinear | None) -> None:
    """The banner said 333 tokens/s for one request and 333 for 16 together: what is known stays."""
    learning = StepLearning(MachineModel(known))
    serving = Serving(Bilinear(p1=3e-4, d2=3e-3), learning)
    for _ in range(40):
        for rows in (1, 4, 8):
            serving.prefill(1, 100)
            serving.decode(rows, 100)
            serving.decode(rows, 101)
        serving.now += INTERVAL
    assert learning.machine.model == known and learning.learner.changes == 0
    assert not Bilinear(d2=3e-3).gains_by_rows and not Bilinear(d1=1e-5, d2=1e-4).gains_by_rows
    assert SHARED.gains_by_rows and SHARED.slowed(9.0).gains_by_rows and CPU.gains_by_rows and GPU.gains_by_rows


# On a profile


def profiled(model: Bilinear) -> Serving:
    return Serving(model, StepLearning(MachineModel(model), timings=timings(model)))


@pytest.mark.parametrize("factor", [3.0, 0.4])
def test_a_profile_stays_where_it_is_right_and_follows_a_machine_that_changes_within_a_minute(factor: float) -> None:
    """Also of steps that are rare."""
    serving, rng, changed = profiled(CPU), random.Random(0), CPU.slowed(factor)
    serving.serve(60.0, rng)
    learner = serving.learning.learner
    assert learner.changes > 1 and learner.latest is not None and learner.latest.rmse < 1e-3
    assert_near(serving.learned, CPU, 1e-3)
    serving.model = changed
    serving.serve(60.0, rng)
    assert_near(serving.learned, changed, 0.05)
    assert serving.learned.prefill(16, 2000) == pytest.approx(changed.prefill(16, 2000), rel=0.1)


@pytest.mark.parametrize(("stalls", "least"), [(1, 0.7), (5, 0.2)])
def test_steps_that_stalled_in_a_new_cell_make_no_machine_thirty_times_faster(stalls: int, least: float) -> None:
    """A server's last steps before it ended did: the next one said 31,067 tokens/s, and each promise broke."""
    serving = profiled(CPU)
    for steps, factor in ((stalls, 30.0), (12, 1.0), (1, 1.0)):
        serving.now += INTERVAL
        for _ in range(steps):
            serving.decode(64, 200, factor)
    assert serving.learned.iteration(1.0, 100.0) >= least * CPU.iteration(1.0, 100.0)


def test_what_was_learned_is_kept_with_all_that_was_measured_before() -> None:
    kept: list[tuple[Bilinear, Timings]] = []
    before = replace(timings(CPU), copies=(Timing(1, 100, 0.5), Timing(1, 200, 0.75)))
    machine = MachineModel(replace(CPU, c1=1e-3, c0=2.0))
    learning = StepLearning(machine, timings=before, keep=lambda *learned: kept.append(learned))
    Serving(CPU, learning).serve(30.0, random.Random(0))
    learning.close()
    model, found = kept[-1]
    assert model is machine.model and (model.c1, model.c0) == (1e-3, 2.0)
    assert (found.slices, found.copies) == (before.slices, before.copies)
    assert {(one.rows, one.length) for one in found.decode} >= {(1, 2000), (4, 2000), (16, 2000)}


def test_a_fit_that_fails_is_logged_and_leaves_the_prices(caplog: pytest.LogCaptureFixture) -> None:
    def fail(model: Bilinear, found: Timings) -> None:
        raise MemoryError("no room")

    learning = StepLearning(MachineModel(CPU), timings=timings(CPU), keep=fail)
    with caplog.at_level(logging.ERROR):
        Serving(CPU, learning).serve(15.0, random.Random(0))
    assert "learning what steps take failed" in caplog.text and learning.machine.model is not None


# Where prices are used


PROFILE = Bilinear(p1=1e-4, p2=2e-3, p3=3e-5, p4=0.02, d1=2e-7, d2=5e-4, d3=1e-6, d4=0.03, c1=1e-6, c0=1e-3)
LIMITS = BatchLimits(group_tokens=2000, prefill_ahead=0, options=Scheduling(slice_length=64, min_interval=1.0))


def scls(learning: StepLearning) -> SchedulerParts:
    return assemble(STRATEGIES["scls"], LIMITS.within(20_000, 1000, 16), learning)


def plans_by(*models: Bilinear) -> list[Plan]:
    """One request each, arranged while the machine's model is this."""
    machine, plans = MachineModel(models[0]), list[Plan]()
    batcher = scls(StepLearning(machine)).batcher
    for row_id, machine.model in enumerate(models):
        batcher.add(request(row_id, 100), 50.0 * row_id)
        plan = batcher.take(worker(capacity=20_000, rows=16), 50.0 * row_id)
        assert plan is not None
        plans.append(plan)
    return plans


def test_a_new_model_counts_from_the_next_arrangement_on_also_for_what_is_kept() -> None:
    alone = PROFILE.serve(1.0, 100.0, 64.0)
    assert [one.estimate for one in plans_by(PROFILE, PROFILE.slowed(2.0))] == pytest.approx([alone, 2 * alone])
    copies = replace(PROFILE, p1=PROFILE.c1, p2=0.5, c0=1.0)
    assert [one.terms.kept_from <= 100 for one in plans_by(copies, replace(copies, p2=2.0))] == [False, True]


@pytest.mark.parametrize("strategy", ["pm", "ab", "lb", "scls", "magnus"])
def test_strategies_that_plan_by_serving_times_begin_without_any(strategy: str) -> None:
    """They refused to start. What they end with is within a tenth of what they do on a profile."""
    machine = Machine(CPU, capacity_tokens=20_000, max_num_seqs=16, context_length=1000)
    trace = [RequestLengths(0.5 * number, 30 + number % 300, 20 + number % 120) for number in range(150)]
    means = []
    for known in (CPU, None):
        parts = assemble(STRATEGIES[strategy], LIMITS.within(20_000, 1000, 16), known)
        done = simulate(parts, machine, trace, 200, predict=lambda sampling: float(sampling.replay_tokens or 1))
        means.append(sum(one.end - one.arrival for one in done.requests) / len(trace))
    assert means[1] == pytest.approx(means[0], rel=0.1)


def test_a_model_that_is_given_is_not_learned() -> None:
    parts = assemble(STRATEGIES["scls"], LIMITS, PROFILE)
    assert parts.estimates.steps is None and parts.estimates.batches is None
