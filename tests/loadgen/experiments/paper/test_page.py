"""A paper's page: the verdict on each row and figure, and what is drawn of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadgen.experiments.paper.plan import Experiment, Plan
from loadgen.experiments.paper.report import judge, make_page, tell_verdict
from loadgen.experiments.paper.row import PERCENT, SECONDS, TIMES, Published, Row, claim, find, skip
from server.cli.main import main


def beside(low: float, high: float, unit: str, *measured: float) -> Row:
    return Published(low, high, unit, "IV, Fig. 1").beside("a over b", {str(one): one for one in measured})


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (beside(60, 70, PERCENT, 10, 55), "as published"),  # 10 % of 70 below 60
        (beside(60, 70, PERCENT, 10, 52), "less"),
        (beside(60, 70, PERCENT, 78, 90), "more"),
        (beside(60, 70, PERCENT, 20, 90), "less"),  # on both sides, and nowhere near
        (beside(60, 70, PERCENT, -5, 0), "the opposite"),
        (beside(1.7, 2.2, TIMES, 0.7, 1.0), "the opposite"),
        (beside(1.7, 2.2, TIMES, 1.2), "less"),
        (beside(242, 242, SECONDS, 241.7), "as published"),
        (beside(242, 242, SECONDS, 0.5), "less"),
        (claim("it rises", True, "1, 2", "IV"), "holds"),
        (claim("it rises", False, "2, 1", "IV"), "does not hold"),
        (skip("it", "there is no GPU"), None),
        (find("it", {"it": 1.0}, SECONDS), None),
    ],
)
def test_a_row_is_judged_by_the_published_range_and_a_tenth_of_it(row: Row, verdict: str | None) -> None:
    assert judge(row) == verdict


def experiment(rows: Sequence[Row]) -> Experiment:
    return Experiment(Plan("Fig. 1", "a machine"), (), rows)


def test_a_figure_has_one_verdict_and_a_plot_a_unit() -> None:
    rows = [
        beside(60, 70, PERCENT, 65),
        beside(60, 70, PERCENT, 5),
        beside(1.7, 2.2, TIMES, 2.0),
        skip("all", "no GPU"),
    ]
    assert tell_verdict(rows) == "2 as published, 1 less of 4"
    assert tell_verdict(rows[:1]) == "as published" and tell_verdict(rows[3:]) == "not measured"
    page = make_page("magnus", [experiment(rows)])
    assert page.count("<svg") == 2
    assert "Fig. 1; IV, Fig. 1: 2 as published, 1 less of 3" in page and "skipped: no GPU" in page
    assert "All together: 2 as published, 1 less of 3." in page


def test_names_are_whole_and_the_axis_goes_beyond_the_largest_figure() -> None:
    """Names were cut off, and bars ended at the last tick."""
    name = "Baton-PD, 8 rows: throughput to Benchmark's, and more"
    row = Published(2.49, 2.49, TIMES, "5.2").beside(name, {"8 rows": 3.31})
    page = make_page("baton", [experiment([row])])
    drawn = page[page.index("<svg") : page.index("</svg")]
    assert "and more<" in drawn and "…" not in drawn
    assert any(float(tick) >= 3.31 for tick in re.findall(r">(\d\.\d)</text>", drawn))


def test_the_command_writes_it(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["paper", "magnus", "--experiments", "case-study", "--report", str(page)]) == 0
    assert "II-E, Fig. 6: 2 as published of 2" in page.read_text()
