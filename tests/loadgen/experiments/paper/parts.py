"""Parts of tests of the papers' experiments: hardware, a small pool, and a player that makes up the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from loadgen.experiments.paper.hardware import Hardware
from loadgen.experiments.paper.load import Pool
from loadgen.experiments.paper.options import Experiments
from loadgen.experiments.paper.stage import Stage
from loadgen.experiments.paper.trial import Course, Player, Trial
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.simulation import Watch
from loadgen.workload.lengths import Lengths
from scheduler.serving_time.bilinear import Bilinear

COST = Bilinear(p1=1e-4, p2=0.0, p3=0.0, p4=0.01, d1=1e-6, d2=1e-4, d3=0.0, d4=0.01)
HARDWARE = Hardware(COST, executors=2, chunk_tokens=512, about="a model", duration=4.0)
POOL = Pool(tuple(Lengths(0.0, 5 + 7 * number % 120, 1 + 11 * number % 60) for number in range(50)), "made up")


def trial_of(throughput: float = 1.0, **figures: float) -> Trial:
    values = {one.name: 1.0 for one in fields(Trial)} | {"throughput": throughput} | figures
    return Trial(**values)


class Scripted:
    """A player that answers by a function, and keeps what it was asked."""

    def __init__(self, answer: Callable[[Course, int], Trial] = lambda course, seed: trial_of()) -> None:
        self.asked: list[tuple[Course, int, int]] = []
        """Courses, how many requests they had, and seeds."""
        self._answer = answer

    def __call__(self, course: Course, requests: Sequence[Lengths], seed: int, watch: Watch) -> Trial:
        self.asked.append((course, len(requests), seed))
        watch(len(requests))
        return self._answer(course, seed)

    @property
    def names(self) -> list[str]:
        return [course.strategy.name for course, _, _ in self.asked]


def stage_of(player: Player, hardware: Hardware | None = HARDWARE, **setting: Any) -> Stage:
    duration = HARDWARE.duration if hardware is None else hardware.duration
    return Stage(POOL, Experiments(duration=duration, **setting), 128, Prediction(0.1), player, hardware)
