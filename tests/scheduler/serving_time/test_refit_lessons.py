"""Bilinear estimates that follow what batches take: when, from which batches, and who goes by them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.measure.timing import Timings
from loadgen.simulate.simulation import Machine, simulate
from loadgen.workload.lengths import Lengths
from scheduler.assembly import Parts, assemble
from scheduler.batching.batcher import Limits
from scheduler.batching.dp_batcher import DpBatcher
from scheduler.plan import Assignment, Plan
from scheduler.serving_time.estimator import BilinearEstimator
from scheduler.serving_time.learning import BatchLearning, inline
from scheduler.serving_time.refit import FEWEST, MOST_BATCHES, RefitData, RefitLessons, refit_data
from scheduler.serving_time.served_batch import ClosedBatch
from scheduler.strategy import CLOSED, STRATEGIES
from tests.scheduler.batching.test_dp_batcher import executor
from tests.scheduler.fakes import request
from tests.scheduler.serving_time.closed import PROFILE, timings, took

SLOW = PROFILE.slowed(2.0)
LIMITS = Limits(group_tokens=100, prefill_ahead=0, slice_length=64, min_interval=2.0)
BATCH = took(PROFILE, 4, 100)


def ended(at: float, factor: float, *, closed: bool = True) -> Assignment:
    """A batch like BATCH that ends now, and took `factor` times as long as the profile has it."""
    rows = [request(row_id, 100) for row_id in range(4)]
    assignment = Assignment(Plan(tuple(rows), CLOSED if closed else replace(CLOSED, closed=False)), 0, sent=0.0)
    for one in rows:
        one.generated = 65
    assignment.began, assignment.ended = at - factor * BATCH.seconds, at
    return assignment


def learning_of(
    estimator: BilinearEstimator, begin: RefitData | None = None, **options: object
) -> BatchLearning[ClosedBatch]:
    return BatchLearning(RefitLessons(estimator, begin or RefitData(timings())), inline, **options)  # type: ignore[arg-type]


def pace(estimator: BilinearEstimator) -> float:
    """Of estimates of the same batch, over the profile's."""
    return BATCH.estimate(estimator.model) / BATCH.estimate(PROFILE)


def test_every_two_minutes_with_new_batches_the_model_is_fitted_again(caplog: pytest.LogCaptureFixture) -> None:
    estimator = BilinearEstimator(PROFILE)
    learning = learning_of(estimator)
    with caplog.at_level(logging.INFO):
        for second in range(FEWEST - 1):
            learning.finished(ended(1000.0 + second, 2.0), 1000.0 + second)
        assert pace(estimator) == 1.0
        learning.finished(ended(1120.0, 2.0), 1120.0)
    assert pace(estimator) == pytest.approx(2.0, rel=1e-3)
    assert learning.latest is not None and learning.changes == 1
    assert (learning.latest.batches, learning.latest.learned) == (FEWEST, FEWEST)
    assert learning.latest.rmse == pytest.approx(BATCH.seconds), "it took twice what had been estimated"
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert f"re-fitted from {FEWEST} batches: RMSE 0.000 s, before {BATCH.seconds:.3f} s" in caplog.text
    learning.finished(ended(1200.0, 2.0), 1200.0)
    assert learning.changes == 1
    learning.finished(ended(1240.0, 2.0), 1240.0)
    assert (learning.changes, learning.latest.batches, learning.latest.learned) == (2, 2, FEWEST + 2)
    assert learning.latest.rmse == pytest.approx(0.0, abs=1e-3), "by what had been learnt before"


def test_what_others_could_join_teaches_nothing() -> None:
    estimator = BilinearEstimator(PROFILE)
    learning = learning_of(estimator, interval=0.0)
    for second in range(FEWEST):
        learning.finished(ended(1000.0 + second, 2.0, closed=False), 1000.0 + second)
    assert estimator.model is PROFILE and learning.latest is None


def test_a_few_batches_leave_the_profile_and_are_kept_for_later() -> None:
    estimator = BilinearEstimator(PROFILE)
    learning = learning_of(estimator, interval=0.0)
    for second in range(FEWEST - 1):
        learning.finished(ended(1000.0 + second, 2.0), 1000.0 + second)
    assert estimator.model is PROFILE and learning.changes == 0
    assert learning.latest is not None and learning.latest.learned == 0
    learning.finished(ended(1100.0, 2.0), 1100.0)
    assert pace(estimator) == pytest.approx(2.0, rel=1e-3) and learning.changes == 1


def test_the_latest_batches_count() -> None:
    """As many as are remembered took twice as long; then come as many at the profile's pace."""
    begin = refit_data(PROFILE, timings(), [took(SLOW, 4, 100)] * (MOST_BATCHES + 5))
    assert len(begin.earlier) == MOST_BATCHES
    estimator = BilinearEstimator(PROFILE)
    lessons = RefitLessons(estimator, begin)
    assert pace(estimator) == pytest.approx(2.0, rel=1e-3), "it begins with what was served before"
    lessons.learn([BATCH] * MOST_BATCHES)
    assert pace(estimator) == pytest.approx(1.0, rel=1e-3)


def test_the_work_is_done_where_it_is_submitted_to() -> None:
    estimator, desk = BilinearEstimator(PROFILE), list[Callable[[], None]]()
    learning = BatchLearning(RefitLessons(estimator, RefitData(timings())), desk.append, interval=60.0)
    for second in range(0, 100, 5):
        learning.finished(ended(1000.0 + second, 2.0), 1000.0 + second)
    assert estimator.model is PROFILE and len(desk) == 1
    desk[0]()
    assert estimator.model is PROFILE, "13 batches are too few"


def test_a_re_fit_that_fails_is_logged_and_leaves_the_estimates(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no convergence")

    estimator = BilinearEstimator(PROFILE)
    learning = learning_of(estimator, RefitData(timings(), model=SLOW), interval=0.0)
    monkeypatch.setattr("scheduler.serving_time.refit.refit", fail)
    learning.finished(ended(1000.0, 2.0), 1000.0)
    assert estimator.model is SLOW and learning.changes == 0
    assert "learning serving times from 1 batches failed" in caplog.text and "no convergence" in caplog.text


def test_a_new_model_counts_from_the_next_arrangement_on() -> None:
    """What was arranged and not handed out yet goes out with the estimates that it was arranged by."""
    parts = assemble(STRATEGIES["scls"], LIMITS, PROFILE)
    batcher = parts.batcher
    assert isinstance(batcher, DpBatcher)
    estimator = batcher._machine
    for row_id in range(2):
        batcher.add(request(row_id, 100), 0.0)
    busy = executor(load=9.0, rows=1)
    plans = [batcher.take(busy, 0.0)]
    estimator.model = SLOW
    plans.append(batcher.take(busy, 0.0))
    batcher.add(request(2, 100), 50.0)
    plans.append(batcher.take(busy, 50.0))
    alone = PROFILE.serve(1.0, 100.0, 64.0)
    assert [plan and plan.estimate for plan in plans] == pytest.approx([alone, alone, 2 * alone])


def test_k_and_v_are_kept_by_the_new_model_too() -> None:
    """They were kept by the profile for ever, while batches were formed by the new model."""
    copies = replace(PROFILE, p1=0.0, p2=0.5, c0=1.0)
    parts = assemble(STRATEGIES["scls"], LIMITS, copies)
    assert isinstance(parts.batcher, DpBatcher)
    kept = []
    for row_id, model in enumerate((copies, replace(copies, p2=2.0))):
        parts.batcher._machine.model = model
        parts.batcher.add(request(row_id, 100), 50.0 * row_id)
        plan = parts.batcher.take(executor(), 50.0 * row_id)
        assert plan is not None
        kept.append(100 in plan.terms.keep_kv)
    assert kept == [False, True]


@pytest.mark.parametrize(
    ("strategy", "begin", "learns"),
    [("scls", None, False), ("scls", RefitData(timings()), True), ("baton-pd", RefitData(timings()), False)],
)
def test_only_who_has_grounds_fits_again(strategy: str, begin: RefitData | None, learns: bool) -> None:
    parts = assemble(STRATEGIES[strategy], LIMITS, PROFILE, refit_data=begin)
    assert (parts.learning is not None) is learns and parts.observer is parts.learning


def simulated(begin: RefitData | None) -> Parts:
    """`scls` after 400 requests, on a machine that is twice as slow as its profile."""
    limits = LIMITS.within(20_000, 1000, 16)
    parts = assemble(STRATEGIES["scls"], limits, PROFILE, refit_data=begin)
    machine = Machine(SLOW, capacity_tokens=20_000, max_num_seqs=16, context_length=1000, workers=2)
    simulate(parts, machine, [Lengths(1.5 * number, 30 + number % 300, 150) for number in range(400)], 200)
    return parts


def test_estimates_follow_a_slower_machine_while_it_serves() -> None:
    parts = simulated(RefitData(timings()))
    assert isinstance(parts.batcher, DpBatcher)
    assert pace(parts.batcher._machine) == pytest.approx(2.0, rel=0.02)
    assert parts.learning is not None and parts.learning.latest is not None and parts.learning.latest.rmse < 0.1
    assert simulated(None).learning is None


def test_grounds_without_batches_are_the_profile() -> None:
    assert refit_data(PROFILE, Timings((), ())) == RefitData(Timings((), ()), (), PROFILE)
