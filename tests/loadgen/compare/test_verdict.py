"""Verdicts on differences: directions, edges, lost requests, and how often chance alone would do it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from loadgen.compare.record import CONFIDENCE, find_change, judge, judge_all
from loadgen.console import COLUMNS, TABLES
from tests.loadgen.compare.results import POINTS, comparison

BASE = (10.0, 12.0, 11.0)


def pair(values: Sequence[float], base: Sequence[float] = BASE) -> list[tuple[float, float]]:
    return list(zip(values, base, strict=True))


@pytest.mark.parametrize("values", [(11.5, 5.0, 13.0), (13.0, 14.0, 10.0), (10.0, 12.0, 11.0), (9.0, 30.0, 11.0)])
def test_rounds_that_disagree_show_no_difference(values: tuple[float, ...]) -> None:
    outcome, text = judge(pair(values), "lower")
    assert outcome == "not shown" and text.startswith("no difference shown (")


def test_a_difference_has_a_direction_a_size_and_bounds() -> None:
    fast, slow = pair((5.0, 6.1, 5.4)), pair((32.0, 36.0, 34.0))
    assert judge(fast, "lower") == ("better", "better: 50 % lower (52 % lower to 48 % lower)")
    assert judge(fast, "higher")[0] == "worse"
    assert judge(slow, "lower") == ("worse", "worse: 3.1 times as high (2.9 times as high to 3.4 times as high)")
    assert judge(slow, "higher")[0] == "better"


def test_rounds_whose_requests_differ_are_compared_in_pairs() -> None:
    """Ranges overlap, since a round is three times as heavy as another; in each the contestant is a tenth faster."""
    assert judge(pair((9.0, 27.1, 18.0), (10.0, 30.0, 20.0)), "lower")[0] == "better"


def test_small_differences_are_not_rounded_away_and_zero_divides_nothing() -> None:
    assert judge(pair((10.02, 10.03, 10.02), (10.0, 10.0, 10.0)), "lower")[1].startswith("worse: 0.23 % higher")
    assert judge(pair((3.0, 3.0, 3.0), (0.0, 0.0, 0.0)), "lower") == ("worse", "worse: 3 higher (3 higher)")
    assert judge(pair((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)), "lower") == ("not shown", "no difference shown (equal)")


def test_bounds_are_those_of_students_t_on_logarithms() -> None:
    pairs = pair((9.0, 13.0, 8.0, 10.0), (10.0, 12.0, 11.0, 13.0))
    bounds = stats.ttest_rel(*np.log(np.array(pairs)).T).confidence_interval(CONFIDENCE)
    change = find_change(pairs)
    assert (change.low, change.high) == pytest.approx((np.expm1(bounds.low), np.expm1(bounds.high)))


def test_equals_are_told_apart_as_often_as_the_report_says() -> None:
    random = np.random.default_rng(1)
    drawn = np.exp(random.normal(0.0, 0.2, (2000, 5, 2))) * random.uniform(1.0, 3.0, (2000, 5, 1))
    found = [find_change([(own, base) for own, base in trial]).shown for trial in drawn.tolist()]
    assert sum(found) / len(found) == pytest.approx(1 - CONFIDENCE, abs=0.015)


def test_fewer_than_three_rounds_allow_no_verdict() -> None:
    assert judge(pair((1.0, 1.0), BASE[:2]), "lower") == ("no verdict", "no verdict: 2 of at least 3 rounds")


def test_latencies_of_those_that_completed_say_nothing_when_others_did_not() -> None:
    lossy = comparison({"vs": (9.0, 9.1, 9.2), "magnus": (1.0, 1.1, 1.2)}, POINTS[:1], {"rejected": 2})
    found = {one.quantity.key: one for one in judge_all(lossy)}
    assert found["mean_jct_ms"].outcome == "no verdict"
    assert "12 requests did not complete" in found["mean_jct_ms"].text
    assert found["request_throughput"].outcome == "not shown"


def test_runs_that_were_cut_short_do_not_count() -> None:
    whole = comparison({"vs": (9.0, 9.1, 9.2), "magnus": (1.0, 1.1, 1.2)}, POINTS[:1])
    assert "better" in {one.outcome for one in judge_all(whole)}
    *rest, last = whole.plays
    cut = replace(whole, plays=(*rest, replace(last, figures={**last.figures, "interrupted": True})))
    assert {one.outcome for one in judge_all(cut)} == {"no verdict"}


def test_a_column_stands_under_its_own_key() -> None:
    assert all(key == one.key for key, one in COLUMNS.items())
    assert {key for keys in TABLES.values() for key in keys} <= set(COLUMNS)
