"""The speed of a run by its steps, by hand."""

from __future__ import annotations

import pytest

from engine.messages import BatchShape, ExecutorDied, RowUpdate, StepReport, Tally
from loadgen.experiments.validation.play import Speedometer
from scheduler.serving_time.bilinear import Bilinear

PROFILE = Bilinear(p1=0.0, p2=0.0, p3=0.01, p4=0.0, d1=0.0, d2=0.0, d3=0.0, d4=0.1)
"""A prompt of 10 tokens takes 0.1 s, and so does an iteration."""

BUSY = BatchShape(rows=1, start=0, end=12)


def prefill(step: int, seconds: float) -> StepReport:
    update = RowUpdate(step, (7,))
    tally = Tally(prompt=10, generated=1)
    return StepReport(0, step, (update,), BatchShape(staged=1), seconds, begun=(step,), tally=tally)


def iteration(step: int, seconds: float, shape: BatchShape = BUSY) -> StepReport:
    return StepReport(0, step, (RowUpdate(1, (7,)),), shape, seconds, tally=Tally(generated=1, reads=12))


def test_steps_are_held_against_the_profile() -> None:
    """A prefill of 0.2 s and two iterations of 0.1 and 0.3 s, where the profile says 0.1 of each."""
    speed = Speedometer(PROFILE)
    speed.hear(prefill(1, 0.2), 0.2)
    speed.hear(iteration(2, 0.1), 0.3)
    speed.hear(iteration(3, 0.3), 0.6)
    found = speed.read()
    assert found.slowdown == pytest.approx(0.6 / 0.3)
    assert found.prices.prefill(1.0, 10.0) == pytest.approx(0.2)
    assert found.prices.iteration(1.0, 12.0) == pytest.approx(0.2), "the sum of both is what they took"


def test_the_machine_is_as_fast_at_each_moment_as_it_was() -> None:
    """Iterations of 0.1 and 0.3 s count for 0.2 s of work each; before and after them the speed is even."""
    speed = Speedometer(PROFILE)
    speed.hear(prefill(1, 0.2), 0.2)
    speed.hear(iteration(2, 0.1), 0.3)
    speed.hear(iteration(3, 0.3), 0.6)
    found = speed.read()
    assert found.curve.pace(0.2, 0.2) == pytest.approx(0.1)
    assert found.curve.pace(0.3, 0.2) == pytest.approx(0.3)
    assert found.curve.pace(0.2, 0.3) == pytest.approx(0.1 + 0.15), "a half of the slow one"
    assert found.curve.pace(0.6, 5.0) == pytest.approx(5.0)


def test_what_is_done_between_two_steps_counts_while_there_are_rows() -> None:
    speed = Speedometer(PROFILE)
    speed.hear(prefill(1, 0.1), 0.1)
    speed.hear(iteration(2, 0.1, BatchShape()), 0.25)
    assert speed.read().prices.iteration(1.0, 12.0) == pytest.approx(0.15)
    speed.hear(prefill(3, 0.1), 5.0)
    assert speed.read().prices.prefill(1.0, 10.0) == pytest.approx(0.1), "it was idle before"
    assert speed.read().curve.pace(1.0, 2.0) == pytest.approx(2.0)


def test_a_late_report_is_not_counted_twice() -> None:
    """Three iterations of 0.1 s, the second of which is heard 0.06 s late: 0.36 s at most, not 0.1 + 0.16 + 0.1."""
    speed = Speedometer(PROFILE)
    speed.hear(prefill(1, 0.1), 0.1)
    for step, now in ((2, 0.2), (3, 0.36), (4, 0.4), (5, 0.5), (6, 0.6)):
        speed.hear(iteration(step, 0.1), now)
    assert sum(step.timing.seconds for _, _, step in speed._steps if step.phase == "decode") == pytest.approx(0.56)


def test_without_steps_it_is_the_profiles() -> None:
    speed = Speedometer(PROFILE)
    speed.hear(ExecutorDied(0, "gone"), 1.0)
    found = speed.read()
    assert (found.prices, found.slowdown) == (PROFILE, 1.0)
    assert found.curve.pace(3.0, 2.0) == pytest.approx(2.0)


def test_rows_that_only_move_belong_to_the_step_that_follows() -> None:
    speed = Speedometer(PROFILE)
    speed.hear(prefill(1, 0.1), 0.1)
    speed.hear(StepReport(0, 2, (), BUSY, 0.05), 0.15)
    speed.hear(iteration(3, 0.1), 0.25)
    assert speed.read().prices.iteration(1.0, 12.0) == pytest.approx(0.15)
