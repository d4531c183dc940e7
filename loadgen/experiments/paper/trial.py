"""A point of an experiment, and the figures of a run there that the papers ask for. Knows no paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeAlias

from engine.simulated.machine import Machine
from loadgen.experiments.paper.load import Load, Pool
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.simulation import Simulation, Watch, fit_parts, measure_simulation, prices_of, simulate
from models.errors import UserError
from scheduler.batching.batcher import Limits
from scheduler.plan import Assignment
from scheduler.strategy import Length, Strategy

SLICE_MEMORY = "slice"  # the rule of memory of strategies that slice
FEW_SLICES = 3
"""Most slices that "the vast majority" of requests needs (SCLS, 5.2)."""


Figures: TypeAlias = Mapping[str, float]
"""The figures of a run by name, or the means of several: times in seconds, rates a second, shares in percent."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a sweep: a machine under a load, at which every strategy of an experiment runs."""

    label: str
    machine: Machine
    load: Load
    limits: Limits
    x: float = 0.0  # its place in the sweep: a rate, a slice's length, a number of rows or of workers
    prediction: Prediction | None = None  # None: one as good as the paper's
    pool: Pool | None = None  # requests of its own; None: those of all runs
    slice_memory: str = SLICE_MEMORY  # the rule of memory for strategies that slice
    repeats: int = 1  # runs with requests and arrivals of their own, whose mean is shown


@dataclass(frozen=True, slots=True)
class Line:
    """The figures of a strategy at one point of a sweep."""

    strategy: str
    point: Point
    figures: Figures


def at_point(strategy: Strategy, point: Point) -> Strategy:
    """The strategy with the point's rule of memory, where it slices."""
    return replace(strategy, memory=point.slice_memory) if strategy.memory == SLICE_MEMORY else strategy


def run_trial(
    strategy: Strategy, point: Point, pool: Pool, max_tokens: int, prediction: Prediction, watch: Watch | None = None
) -> Figures:
    """Simulate a strategy at a point; the load's seed is that of the predictions' errors too. Raises UserError."""
    strategy = at_point(strategy, point)
    parts, slices = fit_parts(strategy, point.limits, point.machine, prices_of(point.machine)), SliceCount()
    known: dict[str, Prediction] = {Length.NONE: Prediction(), Length.ORACLE: Prediction(0.0)}
    predict = known.get(strategy.length, point.prediction or prediction).source(point.load.seed)
    parts = replace(parts, observers=(*parts.observers, slices))
    done = simulate(parts, point.machine, point.load.requests(pool), max_tokens, watch, predict)
    return make_trial(done, slices.early_share)


def make_trial(done: Simulation, early_share: float = 0.0) -> Figures:
    """The figures of a simulation. Raises UserError when a request was not answered."""
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
        "duration": found["duration"],  # from the first arrival to the last answer
        "throughput": found["request_throughput"],  # over the duration
        "answered_meanwhile": meanwhile / (last - begin) if last > begin else 0.0,  # before the last request came
        "first_quarter": quarter / waited,  # until the first quarter was answered: the throughput of SSJF's program
        "valid_tokens": found["output_throughput"],
        "total_tokens": generated / found["duration"],  # invalid ones among them (Magnus, IV-A)
        "mean": found["mean_jct_ms"] / 1000,  # response time, from arrival to last token
        "tail": found["p95_jct_ms"] / 1000,
        "batch_size": found["mean_batch_size"],
        "pad": found["pad_tokens"],  # a request
        "invalid": found["invalid_tokens"],  # tokens a request
        "slices": found["slices"],  # a request
        "few_slices": 100 * fmean(one.runs <= FEW_SLICES for one in done.requests),
        "early_returns": 100 * early_share,  # slices that ended early since all their rows had
        "imbalance": found["completion_std"],  # of the executors' completion times (SCLS, 3.2)
    }


def pool_trials(trials: Sequence[Figures]) -> Figures:
    """The mean of each figure."""
    return {name: fmean(one[name] for one in trials) for name in trials[0]}


@dataclass(slots=True)
class SliceCount:
    """An observer that counts slices which end before their time."""

    _slices: int = 0
    _early: int = 0

    @property
    def early_share(self) -> float:
        """Share of the batches with an iteration limit whose rows had all ended before it; 0 without any."""
        return self._early / self._slices if self._slices else 0.0

    def on_finish(self, assignment: Assignment, now: float) -> None:
        limit = assignment.plan.terms.iterations
        if limit is not None:
            self._slices += 1
            self._early += assignment.iterations < limit
