"""The report: well-formed, self-contained, complete in what it names, and silent about what nobody measured; and
verdicts on differences: directions, edges, lost requests, and how often chance alone would do it."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import orjson
import pytest
from rich.console import Console
from scipy import stats

from loadgen.compare.record import CONFIDENCE, Comparison, LoadPoint, Trouble, find_change, judge, judge_all
from loadgen.compare.report import make_document, make_page, make_summary
from loadgen.console import COLUMNS, TABLES
from tests.loadgen.compare.results import POINTS, SETTING, comparison

VOID = {"meta", "br", "hr", "img", "input", "link"}
EQUAL = {"vs": (5.0, 6.0, 7.0), "magnus": (7.5, 5.5, 6.5)}
APART = {"vs": (5.0, 6.0, 7.0), "magnus": (1.0, 1.1, 1.2), "baton-pd": (2.0, 2.1, 2.2)}


class Reader(HTMLParser):
    """Notes elements, attributes and words, and refuses tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def said(self) -> str:
        return " ".join(self.words)


def read(shown: Comparison) -> Reader:
    return Reader(make_page(shown, SETTING))


BURSTS = (LoadPoint(1.0, 0.5), LoadPoint(1.0, 2.0))
LOADS = [POINTS, POINTS[:1], (LoadPoint(),), BURSTS, (*POINTS, LoadPoint(float("inf")))]


@pytest.mark.parametrize("points", LOADS)
def test_it_is_well_formed_with_described_plots_of_every_load(points: tuple[LoadPoint, ...]) -> None:
    seen = read(comparison(APART, points))
    lines, alone = divmod(len(points), 3) if len(points) > 2 else (0, len(points))
    assert seen.tags["figure"] == seen.tags["svg"] == seen.tags["desc"] == 3 * lines + alone
    roles = [value for name, value in seen.attributes if name == "role"]
    labels = [value for name, value in seen.attributes if name == "aria-label"]
    assert roles.count("img") == seen.tags["svg"] and len(labels) == roles.count("img") + roles.count("region")
    assert all(labels) and not [value for name, value in seen.attributes if name == "id"]


def test_it_needs_nothing_from_elsewhere() -> None:
    text = make_page(comparison(APART), SETTING)
    seen = Reader(text)
    assert not seen.tags.keys() & {"script", "link", "img", "iframe", "object"}
    assert not {name for name, _ in seen.attributes} & {"src", "href", "onclick"}
    assert not re.search(r"url\(|@import|https?://", text)
    assert "prefers-color-scheme: dark" in text


def test_it_names_the_machine_versions_seeds_and_commands() -> None:
    said = read(comparison(APART)).said
    for value in (*SETTING.machine.values(), *SETTING.versions.values(), SETTING.date, "seeds 0 to 2"):
        assert value in said
    assert "lengthwise serve 'tiny model' --strategy magnus" in said


def test_it_tells_how_servers_were_warmed_up() -> None:
    held = comparison(APART)
    four, none = (read(replace(held, flags=replace(held.flags, num_warmups=count))).said for count in (4, 0))
    assert "Each server was warmed up with 4 requests before each of its turns, which the figures leave out." in four
    assert "No server was warmed up (--num-warmups 0): what is slow at first is part of the figures." in none


def test_rounds_that_disagree_are_never_called_different() -> None:
    said = read(comparison(EQUAL)).said
    assert "no difference shown (" in said
    assert "better: " not in said and "worse: " not in said and "▲" not in said and "▼" not in said


def test_differences_are_told_against_the_baseline_and_between_the_others() -> None:
    seen = read(comparison(APART))
    assert "▲ better: 82 % lower (" in seen.said
    assert seen.said.index("At 1 request/s, against vs") < seen.said.index("At 1 request/s, against magnus")
    assert "in 1 of 20 comparisons" in seen.said


def test_only_what_servers_told_is_shown() -> None:
    silent = read(comparison(APART)).said
    assert not any(title in silent for title in ("Mean batch size", "Mean normalized"))
    assert "Mean batch size" in read(comparison(APART, POINTS, {"server_mean_batch_rows": 3.5})).said


def test_troubles_unequal_work_and_lost_requests_come_first() -> None:
    lossy = comparison(APART, POINTS[:1], {"failed": 1})
    less = {"vs": {"failed": 0, "total_output_tokens": 900}}
    plays = tuple(replace(one, figures={**one.figures, **less.get(one.contestant, {})}) for one in lossy.plays)
    troubles = (Trouble("ils", 1, "did not start:\n  <tail> & more"),)
    said = read(replace(lossy, plays=plays, troubles=troubles, interrupted=True)).said
    assert "did not start:\n  <tail> & more" in said and "It was interrupted: 9 of 9 runs" in said
    assert "magnus: 3 requests failed and 0 were rejected" in said
    uneven = tuple(replace(play, figures={**play.figures, "failed": 0}) for play in plays)
    assert "did not generate equally many tokens (vs 900, magnus 1,000" in read(replace(lossy, plays=uneven)).said


def test_only_rounds_that_were_finished_count() -> None:
    whole = comparison(APART)
    assert "Of 3 rounds were finished: 3 by vs, 3 by magnus, 3 by baton-pd" in read(whole).said
    cut = replace(whole.plays[-1], figures={**whole.plays[-1].figures, "interrupted": True})  # baton-pd's, round 3
    shown = replace(whole, plays=(*whole.plays[:-1], cut), interrupted=True)
    assert "Of 3 rounds were finished: 3 by vs, 3 by magnus, 2 by baton-pd" in read(shown).said
    assert make_document(shown, SETTING)["rounds_finished"] == {"vs": 3, "magnus": 3, "baton-pd": 2}
    short = comparison({"vs": (5.0, 6.0), "magnus": (1.0, 1.1)})
    assert "Of 3 rounds were finished: 2 by vs, 2 by magnus" in read(short).said


def test_json_holds_every_figure_of_every_round() -> None:
    points = (LoadPoint(2.0), LoadPoint(float("inf")))
    held = orjson.loads(orjson.dumps(make_document(comparison(APART, points), SETTING)))
    assert len(held["plays"]) == 3 * 3 * 2
    first = held["plays"][0]
    assert (first["contestant"], first["round"], first["request_rate"], first["mean_jct_ms"]) == ("vs", 1, 2.0, 5000.0)
    assert len(first["jcts_s"]) == 20
    assert {one["request_rate"] for one in held["plays"]} == {2.0, "inf"}
    pairs = {(one["contestant"], one["baseline"]) for one in held["verdicts"]}
    assert pairs == {("magnus", "vs"), ("baton-pd", "vs"), ("baton-pd", "magnus")}


def test_nothing_played_is_a_page_too() -> None:
    assert "Nothing can be said" in read(comparison({"vs": (), "magnus": ()})).said


def summary(shown: Comparison) -> str:
    console = Console(width=300)
    with console.capture() as caught:
        console.print(make_summary(shown))
    return caught.get()


def test_where_agents_ran_their_figures_are_shown() -> None:
    runs = {"runs": 4, "mean_run_ms": 70_000.0, "p99_run_ms": 90_000.0, "median_turn_ttft_ms": 2.0, "prefix_hits": 0.25}
    shown = summary(comparison({"a": [1.0, 1.0, 1.0], "b": [1.0, 1.0, 1.0]}, POINTS[:1], runs))
    assert all(text in shown for text in ("run time", "70", "90", "median TTFT of turns", "25"))
    assert "run time" not in summary(comparison({"a": [1.0, 1.0, 1.0], "b": [1.0, 1.0, 1.0]}, POINTS[:1]))


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
