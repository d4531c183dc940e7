"""Figures of samples and of outcomes, by hand and against what numpy says."""

from dataclasses import replace

import numpy as np
import pytest

from loadgen.bench.measures import judge, judge_promises, measure, measure_fairness, meets, spread
from loadgen.client.request import Foretold
from tests.loadgen.bench.outcomes import completed, ended


def test_small_sets_by_hand() -> None:
    figures = {"mean_x_ms": 250, "std_x_ms": 1000 * 0.0125**0.5, "median_x_ms": 200}
    figures |= {"p25_x_ms": 100, "p75_x_ms": 300, "p100_x_ms": 400}
    assert spread("x_ms", [0.4, 0.1, 0.2, 0.3], [25.0, 75.0, 100.0]) == pytest.approx(figures)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_percentiles_are_measured_values(scale: float) -> None:
    samples = np.random.default_rng(0).lognormal(sigma=2.0, size=2000) * scale
    percentiles = [1.0, 50.0, 90.0, 99.0, 99.9]
    figures, ordered = spread("x", samples.tolist(), percentiles), np.sort(samples)
    for percentile in percentiles:
        assert figures[f"p{percentile:g}_x"] == ordered[round(percentile / 100 * samples.size) - 1], percentile


def test_nothing_has_no_figures_and_zeros_have_zeros() -> None:
    assert set(spread("x", [], [99.0]).values()) == {None}
    assert set(spread("x", [0.0, 0.0], [99.0]).values()) == {0}


def test_kinds_of_outcomes_are_counted_apart_and_only_completed_ones_measured() -> None:
    whole = replace(completed((1.0, 2.0), tokens=2), counted=False)
    run = [whole, ended("failed"), ended("rejected"), ended("rejected"), ended("cancelled")]
    figures = measure(run, 4.0)
    assert [figures[name] for name in ("completed", "uncounted", "failed", "rejected", "cancelled")] == [1, 1, 1, 2, 1]
    totals = ("total_input_tokens", "total_output_tokens", "request_throughput", "mean_e2el_ms")
    assert [figures[name] for name in totals] == [10, 2, 0.25, 2000]


def test_nothing_completed_has_no_latency_rather_than_none() -> None:
    figures = measure([ended("failed")], 2.0, [99.0], goals={"ttft": 1.0})
    assert [figures[name] for name in ("completed", "request_throughput", "request_goodput")] == [0, 0, 0]
    assert {value for name, value in figures.items() if name.startswith("mean_")} == {None}
    assert figures["jain_fairness_index"] is None
    assert measure([], 0.0)["output_throughput"] == 0


def test_goodput_needs_every_goal_and_is_absent_without_goals() -> None:
    fast = completed((0.1, 0.2, 0.3), tokens=3)
    late = completed((0.6, 0.7, 0.8), tokens=3)
    slow = completed((0.1, 0.5, 0.9), tokens=3)
    goals = {"ttft": 0.5, "tpot": 0.2}
    assert [meets(one, goals) for one in (fast, late, slow)] == [True, False, False]
    assert measure([fast, late, slow], 2.0, goals=goals)["request_goodput"] == 0.5
    assert measure([fast], 2.0)["request_goodput"] is None
    assert meets(completed((0.1,), tokens=1), {"tpot": 0.0, "ttft": 0.1}), "a single token has no time between tokens"


def test_answers_without_output_have_an_end_but_no_first_token() -> None:
    silent = replace(completed((1.0,), tokens=1), token_times=(), output_tokens=0, end=2.0)
    known = {name for name, value in measure([silent], 2.0).items() if name.startswith("mean_") and value is not None}
    assert known == {"mean_e2el_ms", "mean_jct_ms", "mean_client_queue_time_ms"}


def test_fairness_is_jains_index_of_speeds_counted_from_the_schedule() -> None:
    assert measure_fairness([2.0, 2.0]) == pytest.approx(1)
    assert measure_fairness([2.0, 0.0, 0.0, 0.0]) == pytest.approx(1 / 4)
    assert measure_fairness([]) is None
    late = [completed((2.0,), tokens=2), completed((2.0,), tokens=6)]
    assert measure(late, 2.0)["jain_fairness_index"] == pytest.approx((1 + 3) ** 2 / (2 * (1 + 9)))


def test_the_peak_second_spreads_tokens_over_chunks() -> None:
    one = completed((1.0, 1.2, 1.9, 2.1), tokens=8, sent=1.0)
    figures = measure([one, completed((2.5, 2.6), tokens=3, sent=1.5)], 3.0)
    # Second 0 has three of the first's four chunks; second 1 the last of them and both of the other's.
    assert figures["max_output_tokens_per_s"] == pytest.approx(max(8 * 3 / 4, 8 / 4 + 3))


def test_peak_concurrency_counts_all_and_lets_an_end_make_room() -> None:
    run = [completed((2.0,), tokens=1, sent=0.0), ended("failed", 1.0, 3.0), completed((3.0,), tokens=1, sent=2.0)]
    assert measure(run, 3.0)["max_concurrent_requests"] == 2


def test_ends_that_were_foretold_are_judged_by_shares_of_the_true_time() -> None:
    told = Foretold(low=2.0, median=5.0, high=6.0)
    endings = [(told, 10.0), (told, 4.0), (told, 5.0), (told, 0.0)]
    assert judge(endings) == {"foretold_answers": 3, "foretold_error": 0.25, "foretold_inside": 2 / 3}
    kept = judge_promises([(6.0, seconds) for seconds in (10.0, 4.0, 6.0, 0.0)])
    assert kept == {"promises_kept": 2 / 3, "promised_ratio": 1.0}
    assert judge([]) == judge_promises([]) == {}
    found = measure([replace(completed((end,), tokens=1), foretold=told) for end in (4.0, 8.0)], 8.0)
    assert found["foretold_inside"] == found["promises_kept"] == 1 / 2
