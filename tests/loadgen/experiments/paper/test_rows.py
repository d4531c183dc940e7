"""Rows where the golden files have no case: figures that are missing, and parts of a set of queries."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.experiments.paper.baton import TARGET_2, table_rows
from loadgen.experiments.paper.magnus import ablation_rows as magnus_ablation_rows
from loadgen.experiments.paper.row import PERCENT, PUBLISHED, Published, Row, gain_rows, rises, skip, span
from loadgen.experiments.paper.scls import main_rows, slice_rows
from loadgen.experiments.paper.ssjf import formulation_rows, sjf_rows
from tests.loadgen.experiments.paper.parts import line


def find(rows: list[Row], what: str) -> Any:
    [row] = [one for one in rows if what in one.what]
    return row


def test_gains_are_percents_of_the_other_strategy() -> None:
    lines = [
        line("sls", "10/s", throughput=2.0, mean=100.0, tail=200.0),
        line("scls", "10/s", throughput=5.0, mean=20.0, tail=50.0),
        line("sls", "20/s", throughput=4.0, mean=50.0, tail=100.0),
        line("scls", "20/s", throughput=6.0, mean=25.0, tail=80.0),
    ]
    throughput, mean, tail = gain_rows(lines, PUBLISHED["scls-hf"])[:3]
    assert throughput.document["measured"] == pytest.approx({"10/s": 150.0, "20/s": 50.0})
    assert mean.document["measured"] == pytest.approx({"10/s": 80.0, "20/s": 50.0})
    assert tail.document["measured"] == pytest.approx({"10/s": 75.0, "20/s": 20.0})
    assert throughput.measured == "50.0 to 150.0 %" and throughput.published == "232.3 to 315.8 %"


def test_a_claim_of_equal_figures_has_a_margin() -> None:
    lines = [line("vs"), line("glp", total_tokens=1.05), line("abp", throughput=3), line("magnus", throughput=3.3)]
    rows = magnus_ablation_rows(lines)
    assert find(rows, "almost the total").document["holds"]
    assert not find(rows, "throughput of abp").document["holds"], "10 % is more than 5 %"


@pytest.mark.parametrize(("throughputs", "holds"), [((1, 3, 2), True), ((1, 2, 3), False), ((3, 2, 1), False)])
def test_slice_lengths_have_a_best_one_in_between(throughputs: tuple[float, ...], holds: bool) -> None:
    lines = [
        line("scls", f"slices of {length}", length, throughput=value)
        for length, value in zip((16, 64, 256), throughputs, strict=True)
    ]
    assert find(slice_rows(lines), "throughput").document["holds"] is holds


def test_a_mode_whose_baseline_answered_nothing_in_time_is_skipped() -> None:
    lines = [line("fcfs-dynamic", mean=80, answered_meanwhile=0.0), line("ssjf-dynamic", mean=60)]
    jct, none = sjf_rows(lines, PUBLISHED["ssjf-rates"], "answered_meanwhile")
    assert jct.document["measured"] == pytest.approx({"20/s": 25.0})
    assert none.measured == "skipped: the other strategy has none of it" and none.published == "3.00×"
    modes = ("none", "dynamic", "continuous")
    idle = [
        line(f"{order}-{mode}", row[0], first_quarter=0.0)
        for row in PUBLISHED["ssjf-table-2"]
        for mode in modes
        for order in ("fcfs", "ssjf")
    ]
    assert "skipped" in formulation_rows(idle, "first_quarter")[1].measured


def test_answers_of_one_token_make_no_batches_to_compare() -> None:
    """They ended in a division by zero: nothing decodes, so batches have no size and no token is invalid."""
    lines = [line(name, batch_size=0.0, invalid=0.0) for name in ("sls", "scls")]
    rows = main_rows(lines, "hf")
    for what in ("batch size", "invalid tokens"):
        assert find(rows, what).measured.startswith("skipped: ")


def test_seconds_of_a_part_of_batons_queries_say_nothing() -> None:
    lines = [line("fcfs-dynamic", "8 rows", 8, duration=100.0), line("baton", "8 rows", 8, duration=25.0)]
    published = {8: [50.07, 31.08]}
    rows = table_rows(lines, TARGET_2, published)
    assert [row.measured for row in rows] == ["100.0 s", "25.0 s", "4.00×"]
    assert [row.published for row in rows] == ["50.1 s", "31.1 s", "1.61×"]
    assert [row.what for row in table_rows(lines, TARGET_2, published, whole=False)] == [rows[2].what]


def test_a_skipped_row_says_why() -> None:
    row = skip("magnus over vsq", "4-bit weights need a real engine", Published(70, 240, PERCENT, "IV-B, Fig. 10"))
    assert row.measured == "skipped: 4-bit weights need a real engine"
    assert (row.published, row.where) == ("70.0 to 240.0 %", "IV-B, Fig. 10")


def test_ranges_for_the_eye() -> None:
    assert span(1.0, 1.0, "x") == "1.00×" and span(1.0, 2.5, "s") == "1.0 to 2.5 s"
    assert rises([1, 2, 3]) and not rises([1, 1]) and rises([])
