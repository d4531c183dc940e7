from __future__ import annotations

import pytest

from engine.messages import BatchShape, Cause, ExecutorDied, HandedBack, StepReport, Tally
from loadgen.experiments.validation.speed import Speedometer
from scheduler.serving_time.bilinear import Bilinear

PROFILE = Bilinear(p1=0.0, p2=0.0, p3=0.0, p4=0.0, d1=0.001, d2=0.01, d3=0.0, d4=0.1)
"""An iteration of 2 rows and 30 columns takes 0.1 + 0.02 + 0.06 s."""

SHAPE = BatchShape(rows=2, start=10, end=40)


def step(seconds: float, tally: Tally, shape: BatchShape = SHAPE, **more: object) -> StepReport:
    return StepReport(0, 1, (), shape, seconds, tally=tally, **more)  # type: ignore[arg-type]


def test_iterations_are_held_against_the_profile() -> None:
    speed = Speedometer(PROFILE)
    speed.hear(step(0.18, Tally(generated=2)))
    speed.hear(step(0.36, Tally(generated=1, invalid=1)))
    assert speed.slowdown == pytest.approx(1.5)


@pytest.mark.parametrize(
    "passed_over",
    [
        step(9.0, Tally(generated=2, prompt=5)),
        step(9.0, Tally(generated=2), BatchShape()),
        step(9.0, Tally()),
        step(9.0, Tally(generated=2), extracted=(7,)),
        step(9.0, Tally(generated=2), handed_back=(HandedBack((7,), Cause.SLICE),)),
        ExecutorDied(0, "gone"),
    ],
)
def test_what_is_more_than_an_iteration_tells_nothing(passed_over: StepReport | ExecutorDied) -> None:
    speed = Speedometer(PROFILE)
    speed.hear(passed_over)
    assert speed.slowdown == 1.0
