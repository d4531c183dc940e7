"""The verdict on each row of a paper."""

from __future__ import annotations

import pytest

from loadgen.experiments.paper.row import PERCENT, SECONDS, TIMES, Row
from server.cli.main import main


def row_of(low: float, high: float, unit: str, *measured: float) -> Row:
    return Row.beside("a over b", {str(one): one for one in measured}, low, high, unit, "IV, Fig. 1")


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (row_of(60, 70, PERCENT, 10, 55), "as published"),  # 10 % of 70 below 60
        (row_of(60, 70, PERCENT, 10, 52), "less"),
        (row_of(60, 70, PERCENT, 78, 90), "more"),
        (row_of(60, 70, PERCENT, 20, 90), "less"),  # on both sides, and nowhere near
        (row_of(60, 70, PERCENT, -5, 0), "the opposite"),
        (row_of(1.7, 2.2, TIMES, 0.7, 1.0), "the opposite"),
        (row_of(1.7, 2.2, TIMES, 1.2), "less"),
        (row_of(242, 242, SECONDS, 241.7), "as published"),
        (row_of(242, 242, SECONDS, 0.5), "less"),
        (Row.claim("it rises", True, "1, 2", "IV"), "holds"),
        (Row.claim("it rises", False, "2, 1", "IV"), "does not hold"),
        (Row.skip("it", "there is no GPU"), ""),
        (Row.find("it", {"it": 1.0}, SECONDS), ""),
    ],
)
def test_a_row_is_judged_by_the_published_range_and_a_tenth_of_it(row: Row, verdict: str) -> None:
    assert row.verdict == verdict


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "baton", "--experiments", "table-2"]) == 0
    assert "7 more, 5 less, 3 as published; 15 rows" in capsys.readouterr().out
