"""From a simulation to the figures that papers ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.messages import Tally, Terms
from engine.sampling.params import SamplingParams
from loadgen.experiments.paper.trial import SliceCount, make_trial, pool_trials
from loadgen.simulate.simulation import Served, Simulation, WorkerRecord
from models.errors import UserError
from scheduler.plan import Assignment, Plan
from scheduler.request import Request, Times

ONE = Served(0.0, 0.0, 1.0, 4.0, 10, 20, 1, None)
TWO = Served(2.0, 2.0, 3.0, 12.0, 10, 30, 4, None)
WORKERS = (
    WorkerRecord(12.0, 1.0, 8.0, 16.0, Tally(prompt=10, pad=6, generated=20, invalid=10)),
    WorkerRecord(8.0, 1.0, 2.0, 4.0, Tally(prompt=10, pad=2, generated=30, invalid=0)),
)


def test_figures_by_hand() -> None:
    made = make_trial(Simulation((ONE, TWO), WORKERS), early_share=0.25)
    assert (made.requests, made.duration, made.throughput) == pytest.approx((2, 12, 2 / 12))
    assert (made.mean, made.tail) == pytest.approx((7, 10), rel=2e-3)
    assert (made.valid_tokens, made.total_tokens) == pytest.approx((50 / 12, 60 / 12))
    assert (made.batch_size, made.pad, made.invalid, made.slices) == (2.0, 4.0, 5.0, 2.5)
    assert (made.few_slices, made.early_returns, made.imbalance) == (50.0, 25.0, 2.0)
    assert made.answered_meanwhile == 0.0, "the first is answered after the last one came"
    early = replace(ONE, end=1.0)
    assert make_trial(Simulation((early, TWO), WORKERS)).answered_meanwhile == pytest.approx(0.5)


def test_the_first_quarter_is_counted_as_in_the_authors_program() -> None:
    """The third of nine requests to be answered, at 5 s, has a quarter of the others before it: two in 5 s."""
    requests = tuple(replace(ONE, end=end) for end in (9.0, 3.0, 8.0, 2.0, 7.0, 5.0, 20.0, 6.0, 30.0))
    assert make_trial(Simulation(requests, WORKERS)).first_quarter == pytest.approx(2 / 5)


def test_a_failed_request_is_no_trial() -> None:
    with pytest.raises(UserError, match="1 of 2 requests failed"):
        make_trial(Simulation((ONE, replace(TWO, completed=False)), WORKERS))


def test_several_runs_have_the_mean_of_each_figure() -> None:
    one = make_trial(Simulation((ONE, TWO), WORKERS))
    both = pool_trials([one, replace(one, mean=one.mean + 2, throughput=0.0)])
    assert both.mean == one.mean + 1 and both.throughput == one.throughput / 2
    assert both.pad == one.pad


@pytest.mark.parametrize(("limit", "share"), [(5, 1.0), (4, 0.0), (None, 0.0)])
def test_a_slice_is_early_when_all_its_rows_ended_before_its_limit(limit: int | None, share: float) -> None:
    request = Request(0, (1,), SamplingParams(9), Times(0.0), generated=2)
    assignment = Assignment(Plan((request,), Terms(closed=True, iterations=limit)), 0, 0.0)
    told: list[Assignment] = []
    count = SliceCount(Told(told))
    request.generated = 6
    count.on_finish(assignment, 1.0)
    assert count.early_share == share
    assert told == [assignment]
    assert SliceCount(Told([])).early_share == 0.0


class Told:
    """An observer that keeps what it is told."""

    def __init__(self, told: list[Assignment]) -> None:
        self._told = told

    def on_finish(self, assignment: Assignment, now: float) -> None:
        self._told.append(assignment)
