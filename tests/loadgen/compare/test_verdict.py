"""Verdicts on differences: directions, edges, lost requests, and how often chance alone would do it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from loadgen.compare.quantities import QUANTITIES
from loadgen.compare.verdict import Spread, compute_chance, judge, judge_against
from tests.loadgen.compare.results import POINTS, comparison

BASE = Spread((10.0, 12.0, 11.0))


@pytest.mark.parametrize("values", [(11.5, 5.0, 5.0), (13.0, 14.0, 12.0), (10.0, 1.0, 1.0), (9.0, 30.0, 11.0)])
def test_rounds_that_overlap_show_no_difference(values: tuple[float, ...]) -> None:
    assert judge(Spread(values), BASE, "lower") == ("not shown", "no difference shown (rounds overlap)")


def test_a_difference_has_a_direction_a_size_and_a_least_size() -> None:
    fast, slow = Spread((5.5, 4.0, 6.0)), Spread((22.0, 33.0, 44.0))
    assert judge(fast, BASE, "lower") == ("better", "better: 50 % lower, at least 40 % lower (rounds do not overlap)")
    assert judge(fast, BASE, "higher")[0] == "worse"
    assert judge(slow, BASE, "lower") == (
        "worse",
        "worse: 3 times as high, at least 83 % higher (rounds do not overlap)",
    )
    assert judge(slow, BASE, "higher")[0] == "better"


def test_small_differences_are_not_rounded_away_and_zero_divides_nothing() -> None:
    near = Spread((10.02, 10.03, 10.02))
    assert judge(near, Spread((10.0, 10.0, 10.0)), "lower")[1].startswith("worse: 0.2 % higher")
    assert judge(Spread((3.0, 3.0, 3.0)), Spread((0.0, 0.0, 0.0)), "lower")[1].startswith("worse: 3 higher")


def test_fewer_than_three_rounds_allow_no_verdict() -> None:
    assert judge(Spread((1.0, 1.0)), BASE, "lower") == ("no verdict", "no verdict: 2 of at least 3 rounds")


def test_latencies_of_those_that_completed_say_nothing_when_others_did_not() -> None:
    lossy = comparison({"vs": (9.0, 9.1, 9.2), "magnus": (1.0, 1.1, 1.2)}, POINTS[:1], {"rejected": 2})
    base, other = lossy.plan.contestants
    found = {one.quantity.key: one for one in judge_against(lossy, base, [other])}
    assert found["mean_jct_ms"].outcome == "no verdict"
    assert "12 requests did not complete" in found["mean_jct_ms"].text
    assert found["request_throughput"].outcome == "not shown"


def test_runs_that_were_cut_short_do_not_count() -> None:
    whole = comparison({"vs": (9.0, 9.1, 9.2), "magnus": (1.0, 1.1, 1.2)}, POINTS[:1])
    base, other = whole.plan.contestants
    assert "better" in {one.outcome for one in judge_against(whole, base, [other])}
    *rest, last = whole.plays
    cut = replace(whole, plays=(*rest, replace(last, figures={**last.figures, "interrupted": True})))
    assert {one.outcome for one in judge_against(cut, base, [other])} == {"no verdict"}


def test_chance_is_what_counting_all_arrangements_gives() -> None:
    for rounds in (3, 4, 5):
        arrangements = [set(chosen) for chosen in combinations(range(2 * rounds), rounds)]
        apart = [one for one in arrangements if one in (set(range(rounds)), set(range(rounds, 2 * rounds)))]
        assert compute_chance(rounds) == pytest.approx(len(apart) / len(arrangements))


def test_keys_of_quantities_are_distinct() -> None:
    assert len({one.key for one in QUANTITIES}) == len(QUANTITIES)
