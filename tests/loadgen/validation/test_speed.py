from __future__ import annotations

import pytest

from engine.messages import Tally
from loadgen.simulation import Simulation, WorkerRecord
from loadgen.validation.speed import at_speed_of, work


def busy(seconds: float) -> Simulation:
    return Simulation((), (WorkerRecord(9.0, seconds / 4, seconds / 4, 0.0, Tally()),) * 2)


def test_work_is_what_all_executors_did() -> None:
    assert work(busy(6.0)) == pytest.approx(6.0)


def test_a_machine_that_worked_longer_was_slower() -> None:
    # Half of the work takes longer on a slower machine, as where batches fill up meanwhile.
    slowdown, found = at_speed_of(12.0, lambda factor: busy(5.0 + 5.0 * factor))
    assert slowdown == pytest.approx(1.4, rel=0.05)
    assert work(found) == pytest.approx(12.0, rel=0.02)


def test_as_fast_as_the_profile_says_is_a_slowdown_of_one() -> None:
    assert at_speed_of(10.0, lambda factor: busy(10.0 * factor))[0] == pytest.approx(1.0)
