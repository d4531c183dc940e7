"""A point of an experiment, and strategies' simulated runs there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from engine.simulated.machine import Machine
from loadgen.experiments.options import Experiments
from loadgen.experiments.paper.load import PaperLoad, Pool, outputs
from loadgen.simulate.figures import measure_simulation
from loadgen.simulate.prediction import SimulatedPrediction, choose_prediction
from loadgen.simulate.run import GROUP_TOKENS
from loadgen.simulate.simulation import Simulation, Watch, fit_parts, prices_of, simulate
from models.errors import UserError
from scheduler.batching.batcher import BatchLimits
from scheduler.options import Scheduling
from scheduler.plan import Assignment
from scheduler.strategy import STRATEGIES, Strategy

SLICE_MEMORY = "slice"  # memory rule of strategies that slice
FEW_SLICES = 3  # slices of "the vast majority" (SCLS, 5.2)
MINUTES_10 = 600.0


Figures = Mapping[str, float]  # seconds, 1/s, percent


@dataclass(frozen=True, slots=True)
class TrialPoint:
    """A machine under a load. A run does not depend on label, place and repeats."""

    label: str = field(compare=False)
    machine: Machine
    load: PaperLoad
    limits: BatchLimits
    x: float = field(default=0.0, compare=False)  # in the sweep
    prediction: SimulatedPrediction | None = None  # None: as good as the paper's
    pool: Pool | None = None  # None: the common one
    slice_memory: str = SLICE_MEMORY  # memory rule of strategies that slice
    repeats: int = field(default=1, compare=False)  # runs with other requests and arrivals, averaged


@dataclass(frozen=True, slots=True)
class TrialLine:
    strategy: str
    point: TrialPoint
    figures: Figures


def at_point(strategy: Strategy, point: TrialPoint) -> Strategy:
    return replace(strategy, memory=point.slice_memory) if strategy.memory == SLICE_MEMORY else strategy


def limits(**options: Any) -> BatchLimits:
    """In place of the server's defaults."""
    return BatchLimits.of(Scheduling(**options), GROUP_TOKENS, max_num_seqs=1)


def shrink(machine: Machine, scale: float) -> Machine:
    """With this share of the executors, at least one."""
    return replace(machine, workers=max(1, round(machine.workers * scale)))


@dataclass(slots=True)
class TrialStage:
    """Plays each run once."""

    pool: Pool
    setting: Experiments
    max_tokens: int  # of an answer
    prediction: SimulatedPrediction = SimulatedPrediction()
    # progress, given a title and a number; returns its callback
    begin: Callable[[str, int], Watch] = lambda title, total: lambda ended: None
    _trials: dict[tuple[str, TrialPoint], Figures] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of arrivals, where the paper has ten minutes."""
        return self.setting.duration or MINUTES_10

    def load(self, rate: float) -> PaperLoad:
        return PaperLoad(rate, max(2, round(rate * self.seconds)), seed=self.setting.seed)

    def capacity(self, name: str, machine: Machine, bounds: BatchLimits, count: int) -> float:
        """Requests/s with all there from the start."""
        load = PaperLoad(float("inf"), count, seed=self.setting.seed)
        return self.play(name, TrialPoint("all at once", machine, load, bounds))["throughput"]

    def play(self, name: str, point: TrialPoint) -> Figures:
        """Means over repeats. Raises UserError."""
        load = point.load
        runs = [replace(point, load=replace(load, seed=load.seed + number)) for number in range(point.repeats)]
        if missing := [run for run in runs if (name, run) not in self._trials]:
            total = load.count * len(missing)
            watch = self.begin(f"{name}, {point.label}: {total} requests", total)
            for place, run in enumerate(missing):
                self._trials[name, run] = self._run(name, run, _after(watch, place * load.count))
        return pool_trials([self._trials[name, run] for run in runs])

    def _run(self, name: str, point: TrialPoint, watch: Watch) -> Figures:
        strategy, pool, slices = at_point(STRATEGIES[name], point), point.pool or self.pool, SliceCount()
        parts = fit_parts(strategy, point.limits, point.machine, prices_of(point.machine))
        parts = replace(parts, observers=(*parts.observers, slices))
        max_tokens = self.max_tokens if point.pool is None else max(outputs(pool.lengths))
        predict = choose_prediction(strategy, (point.prediction or self.prediction).source(point.load.seed))
        done = simulate(parts, point.machine, point.load.requests(pool), max_tokens, watch, predict)
        return make_trial(done, slices.early)


def _after(watch: Watch, before: int) -> Watch:
    return lambda ended: watch(before + ended)


def pool_trials(trials: Sequence[Figures]) -> Figures:
    return {name: fmean(one[name] for one in trials) for name in trials[0]}


def make_trial(done: Simulation, early: Sequence[bool] = ()) -> Figures:
    """`early`: whether slices' rows had all ended before. Raises UserError when a request was not answered."""
    found = measure_simulation(done)
    if found["failed"]:
        raise UserError(f"{found['failed']} of {len(done.requests)} requests failed")
    generated = sum(worker.tally.generated + worker.tally.invalid for worker in done.workers)
    begin, last = done.requests[0].arrival, done.requests[-1].arrival
    meanwhile = sum(one.end <= last for one in done.requests)
    quarter = (len(done.requests) - 1) // 4
    waited = sorted(one.end for one in done.requests)[quarter] - begin
    return {
        "requests": len(done.requests),
        "duration": found["duration"],  # first arrival to last answer
        "throughput": found["request_throughput"],
        "answered_meanwhile": meanwhile / (last - begin) if last > begin else 0.0,  # before the last request came
        "first_quarter": quarter / waited,  # until a quarter was answered: the throughput of SSJF's program
        "valid_tokens": found["output_throughput"],
        "total_tokens": generated / found["duration"],  # invalid ones included (Magnus, IV-A)
        "mean": found["mean_jct_ms"] / 1000,  # response time
        "tail": found["p95_jct_ms"] / 1000,
        "batch_size": found["mean_batch_size"],
        "pad": found["pad_tokens"],  # a request
        "invalid": found["invalid_tokens"],  # a request
        "slices": found["slices"],  # a request
        "few_slices": 100 * fmean(one.runs <= FEW_SLICES for one in done.requests),
        "early_returns": 100 * fmean(early or (False,)),
        "imbalance": found["completion_std"],  # of executors' completion times (SCLS, 3.2)
    }


@dataclass(slots=True)
class SliceCount:
    """Notes of batches with an iteration limit whether their rows all ended before it."""

    early: list[bool] = field(default_factory=list)

    def on_finish(self, assignment: Assignment, now: float) -> None:
        if (limit := assignment.plan.terms.iterations) is not None:
            self.early.append(assignment.iterations < limit)
