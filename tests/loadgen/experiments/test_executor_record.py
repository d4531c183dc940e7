"""From an executor's reports to what it did, by hand."""

from __future__ import annotations

import pytest

from engine.messages import BatchShape, StepReport, Tally
from loadgen.experiments.validation.play import Record


def report(seconds: float, tally: Tally) -> StepReport:
    return StepReport(0, 1, (), BatchShape(), seconds, tally=tally)


def test_turns_are_told_apart_by_what_they_computed() -> None:
    record = Record()
    record.add(report(0.5, Tally(prompt=20, pad=4, generated=2)), 100.5)
    record.add(report(0.1, Tally(generated=2)), 100.6)
    record.add(report(0.3, Tally(generated=1, invalid=2)), 100.9)
    record.add(report(0.2, Tally(prompt=5, pad=9, generated=3)), 101.1)  # an entry by shape
    record.add(report(9.9, Tally()), 111.0)
    done = record.finished(origin=100.0)
    assert done.completion == pytest.approx(11.0)
    assert (done.prefill, done.decode) == pytest.approx((0.7, 0.4))
    assert done.row_decode == pytest.approx(2 * 0.1 + 3 * 0.3)
    assert done.tally == Tally(prompt=25, pad=13, generated=8, invalid=2)


def test_an_executor_that_was_given_nothing_ended_at_the_start() -> None:
    assert Record().finished(origin=50.0).completion == 0.0
