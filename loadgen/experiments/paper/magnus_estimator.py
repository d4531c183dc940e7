"""Magnus's estimator of serving times as it learns (Fig. 14)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import exp
from statistics import median
from types import MappingProxyType

from loadgen.experiments.paper.load import Load
from loadgen.experiments.paper.plan import Plan, Stage, limits
from loadgen.experiments.paper.row import Row, chain, claim
from loadgen.experiments.paper.trial import bilinear
from loadgen.simulate.simulation import fit_parts, simulate
from loadgen.workload.lengths import Lengths
from scheduler.learner import Learner, Lesson
from scheduler.plan import Assignment
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.nearest import ServedBatch, estimate_error, served_batch
from scheduler.serving_time.presets import V100_CHATGLM_6B
from scheduler.strategy import STRATEGIES

SHARE, MINUTES = 3.0, 20
"""The rate as a multiple of what `vs` serves, and how long requests come, for the estimator to have ten lessons."""
CASES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"times scatter": (1.0, 0.2), "half as slow again": (1.5, 0.1), "both": (1.5, 0.3)}
)
"""By name, how many times as long as its profile says a machine takes, and the sigma of a batch's factor besides."""


@dataclass(frozen=True, slots=True)
class RoughCost:
    """Seconds of a cost, times a factor, times another for each number of rows (log-normal): a machine whose times no
    bilinear model tells, though batches like those seen do."""

    cost: Bilinear
    factor: float
    sigma: float
    seed: int

    def prefill(self, rows: int, length: int, /) -> float:
        return self._rough(rows) * self.cost.prefill(rows, length)

    def decode(self, rows: int, length: int, iterations: int, /) -> float:
        return self._rough(rows) * self.cost.decode(rows, length, iterations)

    def copy(self, length: int, /) -> float:
        return self.cost.copy(length)

    def _rough(self, rows: int) -> float:
        return self.factor * _draw_factor(self.sigma, self.seed, rows)


@lru_cache(maxsize=4096)
def _draw_factor(sigma: float, seed: int, rows: int) -> float:
    return exp(sigma * random.Random(f"{seed}, {rows}").gauss(0.0, 1.0))


@dataclass(slots=True)
class LessonLog:
    """A PlanObserver, told after that which learns: an estimator's error at each of its lessons, beside that
    of the profile alone."""

    learning: Learner[ServedBatch]
    profile: Bilinear
    errors: list[tuple[float, float, float]] = field(default_factory=list)
    """Times, errors before learning, and the profile's errors on the same batches; in seconds."""
    _served: list[ServedBatch] = field(default_factory=list)
    _latest: Lesson | None = None

    def on_finish(self, assignment: Assignment, now: float) -> None:
        served = served_batch(assignment)
        self._served += [] if served is None else [served]
        latest = self.learning.latest
        if latest is not None and latest is not self._latest:
            self.errors.append((now, latest.rmse, estimate_error(self.profile, self._served)))
            self._latest, self._served = latest, []


def learning(stage: Stage) -> Plan:
    """Figure 14, the estimator's half: its error over time on machines that are not as their profile says."""
    profile = bilinear(V100_CHATGLM_6B)
    served = stage.capacity("vs", V100_CHATGLM_6B, limits(), 350)
    seconds = 60.0 * MINUTES if stage.setting.duration is None else stage.setting.duration
    requests = Load(SHARE * served, round(SHARE * served * seconds), seed=stage.setting.seed).requests(stage.pool)
    rows: list[Row] = []
    for name, (factor, sigma) in CASES.items():
        cost = RoughCost(profile, factor, sigma, stage.setting.seed)
        rows += _lesson_rows(name, lesson_errors(stage, cost, requests, f"learning, {name}"))
    cases = "; ".join(f"{name}: {factor:g} times, sigma {sigma:g}" for name, (factor, sigma) in CASES.items())
    setting = (
        f"magnus on {V100_CHATGLM_6B.workers} × ChatGLM-6B on a V100 32 GB, {len(requests)} requests at {SHARE:g} "
        "times what vs serves; machines take so many times as long as their profile says, each number of rows with a "
        f"log-normal factor of its own ({cases}); errors are root mean squares in seconds of the batches since the "
        "lesson before, with their true lengths"
    )
    return Plan("Magnus: the estimator learns, Fig. 14", setting, others=rows)


def lesson_errors(
    stage: Stage, cost: RoughCost, requests: Sequence[Lengths], title: str
) -> list[tuple[float, float, float]]:
    """Errors at each lesson of serving requests on machines of this cost, as a LessonLog has them."""
    parts = fit_parts(STRATEGIES["magnus"], limits(), V100_CHATGLM_6B, cost.cost)
    assert parts.learning is not None, "magnus learns serving times"
    log = LessonLog(parts.learning, cost.cost)
    predict = stage.prediction.source(stage.setting.seed)
    simulate(
        replace(parts, observers=(*parts.observers, log)),
        replace(V100_CHATGLM_6B, cost=cost),
        requests,
        stage.max_tokens,
        stage.begin(title, len(requests)),
        predict,
    )
    return log.errors


def _lesson_rows(name: str, errors: Sequence[tuple[float, float, float]]) -> list[Row]:
    """Rows for the error in the first interval, which nothing was learned before, and in those after."""
    own, profile = ({f"{one[0] / 60:.0f} min": one[place] for one in errors} for place in (1, 2))
    if len(errors) < 2:
        return [claim(f"{name}: the estimator's error falls", False, f"too few lessons: {chain(own)}", "IV-C, Fig. 14")]
    (before, *later), (_, *without) = list(own.values()), list(profile.values())
    return [
        claim(f"{name}: the estimator's error falls", median(later) < before, chain(own), "IV-C, Fig. 14"),
        claim(f"{name}: it is below the profile's", median(later) < median(without), chain(profile), "IV-C, Fig. 14"),
    ]
