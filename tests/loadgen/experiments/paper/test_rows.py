"""Every row of a paper's tables, worked out by hand from made-up runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadgen.experiments.paper.baton.tables import table_rows
from loadgen.experiments.paper.gains import gain_rows, sjf_rows
from loadgen.experiments.paper.magnus.serving import ablation_rows as magnus_ablation_rows
from loadgen.experiments.paper.magnus.serving import main_rows as magnus_rows
from loadgen.experiments.paper.plan import Line
from loadgen.experiments.paper.row import PERCENT, Published, Row, rises, skip, span
from loadgen.experiments.paper.scls.rows import (
    KEPT,
    READ_ANEW,
    ablation_rows,
    keeping_rows,
    main_rows,
    slice_rows,
    worker_rows,
)
from loadgen.experiments.paper.ssjf.rows import formulation_rows, size_rows
from loadgen.experiments.paper.trial import Trial

PLAIN = Trial(
    requests=1,
    duration=1,
    throughput=1,
    answered_meanwhile=1,
    first_quarter=1,
    valid_tokens=1,
    total_tokens=1,
    mean=1,
    tail=1,
    batch_size=1,
    pad=1,
    invalid=1,
    slices=1,
    few_slices=100,
    early_returns=0,
    imbalance=1,
)


def line(strategy: str, point: str = "20/s", **figures: Any) -> Line:
    return Line(strategy, point, replace(PLAIN, **figures))


def found(rows: list[Row], what: str) -> Any:
    [row] = [one for one in rows if what in one.what]
    return row


def test_gains_are_percents_of_the_other_strategy() -> None:
    lines = [
        line("sls", "10/s", throughput=2.0, mean=100.0, tail=200.0),
        line("scls", "10/s", throughput=5.0, mean=20.0, tail=50.0),
        line("sls", "20/s", throughput=4.0, mean=50.0, tail=100.0),
        line("scls", "20/s", throughput=6.0, mean=25.0, tail=80.0),
    ]
    throughput, mean, tail = gain_rows(lines, "scls-hf")[:3]
    assert throughput.document["measured"] == pytest.approx({"10/s": 150.0, "20/s": 50.0})
    assert mean.document["measured"] == pytest.approx({"10/s": 80.0, "20/s": 50.0})
    assert tail.document["measured"] == pytest.approx({"10/s": 75.0, "20/s": 20.0})
    assert throughput.measured == "50.0 to 150.0 %" and throughput.published == "232.3 to 315.8 %"


def test_scls_main_rows() -> None:
    lines = [
        line("sls", batch_size=16, invalid=200, imbalance=30),
        line("ils", imbalance=9),
        line("ils-padded", imbalance=40),
        line("scls", batch_size=40, invalid=50, few_slices=85, early_returns=0.4, imbalance=10),
    ]
    rows = main_rows(lines, "ds")
    assert found(rows, "batch size").document["measured"] == pytest.approx({"20/s": 150.0})
    assert found(rows, "batch size").published == "43.2 to 86.1 %"
    invalid = found(rows, "invalid")
    assert invalid.document["holds"] and invalid.document["measured"] == "25 to 25 % of them"
    assert found(rows, "three slices").document["holds"]
    assert found(rows, "early").document["measured"] == {"20/s": 0.4}
    assert not found(rows, "completion times").document["holds"], "ils differs less"
    assert len([row for row in rows if "over ils:" in row.what]) == 3
    assert len([row for row in rows if "over ils-padded:" in row.what]) == 3, "beside the same published figures"


def test_scls_ablation_rows() -> None:
    lines = [
        line("so", throughput=3, mean=90, pad=900),
        line("pm", throughput=4, mean=80, pad=70, batch_size=14),
        line("ab", throughput=5, mean=70, pad=80, batch_size=20),
        line("lb", throughput=4.5, mean=60, pad=60, batch_size=21),
    ]
    rows = ablation_rows(lines)
    assert not found(rows, "throughput").document["holds"] and found(rows, "mean response time").document["holds"]
    assert found(rows, "fewer pad tokens").document["holds"] and found(rows, "larger batches").document["holds"]
    slightly = found(rows, "slightly more pad")
    assert not slightly.document["holds"] and slightly.document["measured"] == "pm 70.0, ab 80.0, lb 60.0"


@pytest.mark.parametrize(("throughputs", "holds"), [((1, 3, 2), True), ((1, 2, 3), False), ((3, 2, 1), False)])
def test_slice_lengths_have_a_best_one_in_between(throughputs: tuple[float, ...], holds: bool) -> None:
    lines = [
        line("scls", f"slices of {length}", throughput=value, invalid=length, batch_size=-length, slices=-length)
        for length, value in zip((16, 64, 256), throughputs, strict=True)
    ]
    rows = slice_rows(lines)
    assert found(rows, "throughput").document["holds"] is holds
    assert (
        found(rows, "invalid").document["holds"]
        and found(rows, "smaller batches").document["holds"]
        and found(rows, "fewer a").document["holds"]
    )
    assert not found(rows, "return early").document["holds"]


def test_keeping_k_and_v_is_told_beside_nothing() -> None:
    lines = [
        line("scls", READ_ANEW, throughput=2.0, mean=10.0, tail=30.0),
        line("scls", KEPT, throughput=2.5, mean=8.0, tail=33.0),
    ]
    rows = keeping_rows(lines)
    assert all(not row.published and not row.where for row in rows)
    assert [row.measured for row in rows] == ["25.0 %", "20.0 %", "-10.0 %"]
    assert rows[0].document == {"what": "keeping K and V: throughput", "measured": 25.0, "unit": "%"}


def test_throughput_of_workers_is_shared_out() -> None:
    lines = [line("scls", "workers: 1", throughput=2.0), line("scls", "workers: 4", throughput=7.0)]
    [row] = worker_rows(lines)
    assert not row.document["holds"] and row.document["measured"] == "a worker's, to one alone: 1 1.00, 4 0.88"


def test_magnus_main_rows() -> None:
    lines = [
        line("vs", throughput=1, valid_tokens=100, total_tokens=200),
        line("ccb", throughput=2, valid_tokens=200, total_tokens=200, mean=40, tail=60),
        line("magnus", throughput=3, valid_tokens=300, total_tokens=500, mean=10, tail=30),
    ]
    rows = magnus_rows(lines)
    assert found(rows, "over ccb: throughput").document["measured"] == pytest.approx({"20/s": 50.0})
    assert found(rows, "over ccb: mean").document["measured"] == pytest.approx({"20/s": 75.0})
    assert found(rows, "over vs: valid").document["measured"] == pytest.approx({"20/s": 200.0})
    assert found(rows, "over vs: all tokens").document["measured"] == pytest.approx({"20/s": 150.0})
    assert found(rows, "over vs: all tokens").published == "115.0 to 489.0 %"


def test_magnus_ablation_rows() -> None:
    lines = [
        line("vs", valid_tokens=100, total_tokens=200),
        line("glp", valid_tokens=136, total_tokens=210, throughput=2, mean=50, tail=90),
        line("abp", total_tokens=420, throughput=3, mean=25, tail=45),
        line("magnus", throughput=3.3, mean=20, tail=36),
    ]
    rows = magnus_ablation_rows(lines)
    assert found(rows, "glp over vs: valid").document["measured"] == pytest.approx({"20/s": 36.0})
    assert found(rows, "almost the total").document["holds"]
    assert found(rows, "abp over glp: all").document["measured"] == pytest.approx({"20/s": 100.0})
    assert found(rows, "abp over glp: throughput").document["measured"] == pytest.approx({"20/s": 50.0})
    assert found(rows, "magnus over abp: mean").document["measured"] == pytest.approx({"20/s": 20.0})
    assert found(rows, "magnus over abp: 95").document["measured"] == pytest.approx({"20/s": 20.0})
    assert not found(rows, "throughput of abp").document["holds"], "10 % is more than 5 %"


def test_short_jobs_first_against_fcfs_of_the_same_mode() -> None:
    lines = [
        line("fcfs-none", mean=100, answered_meanwhile=0.5),
        line("fcfs-dynamic", mean=80, answered_meanwhile=0.0),
        line("ssjf-none", mean=60, answered_meanwhile=1.5),
        line("ssjf-dynamic", mean=60, answered_meanwhile=1.0),
    ]
    rows = sjf_rows(lines, "rates", "answered_meanwhile")
    assert [row.what for row in rows] == [
        "ssjf-none: mean JCT less by",
        "ssjf-none: throughput",
        "ssjf-dynamic: mean JCT less by",
        "ssjf-dynamic: throughput",
    ]
    jct, throughput, _, none = rows
    assert none.measured == "skipped: the other strategy has none of it" and none.published == "3.00×"
    assert jct.document["measured"] == pytest.approx({"20/s": 40.0})
    assert throughput.document["measured"] == pytest.approx({"20/s": 3.0})
    assert (jct.published, throughput.published) == ("34.5 %", "3.60×")
    quarters = sjf_rows(
        [replace(one, trial=replace(one.trial, first_quarter=2.0)) for one in lines], "rates", "first_quarter"
    )
    assert found(quarters[:2], "throughput").document["measured"] == {"20/s": 1.0}


def test_answers_of_one_token_make_no_batches_to_compare() -> None:
    """They ended in a division by zero: nothing decodes, so batches have no size and no token is invalid."""
    lines = [line(name, batch_size=0.0, invalid=0.0) for name in ("sls", "scls")]
    rows = main_rows(lines, "hf")
    for what in ("batch size", "invalid tokens"):
        assert found(rows, what).measured.startswith("skipped: ")


def test_batch_size_rows() -> None:
    means = {"fcfs-dynamic": (10, 10), "ssjf-dynamic": (5, 8), "fcfs-continuous": (8, 8), "ssjf-continuous": (6, 4)}
    lines = [
        line(name, point, mean=mean)
        for name, both in means.items()
        for point, mean in zip(("1 rows", "8 rows"), both, strict=True)
    ]
    less, dynamic, continuous = size_rows(lines)
    assert not less.document["holds"], "6 is more than 5"
    assert dynamic.document["holds"] and "50.0" in dynamic.measured
    assert not continuous.document["holds"]


def test_baton_rows() -> None:
    lines = [line("benchmark", "8 rows", duration=100.0), line("baton-pd", "8 rows", duration=25.0)]
    said = {8: {"Benchmark": 6619.0, "PD": 6577.0, "Baton-PD": 2654.0}}
    rows = table_rows(lines, said, "Table 1")
    assert [row.what for row in rows] == [
        "Benchmark, 8 rows: completion time",
        "Baton-PD, 8 rows: completion time",
        "Baton-PD, 8 rows: throughput to Benchmark's",
    ]
    assert [row.measured for row in rows] == ["100.0 s", "25.0 s", "4.00×"]
    assert [row.published for row in rows] == ["6619.0 s", "2654.0 s", "2.49×"]
    assert len(table_rows(lines, said, "Table 1", whole=False)) == 1, "seconds of a part of the queries say nothing"


def test_a_skipped_row_says_why() -> None:
    row = skip("magnus over vsq", "4-bit weights need a real engine", Published(70, 240, PERCENT, "IV-B, Fig. 10"))
    assert row.measured == "skipped: 4-bit weights need a real engine"
    assert (row.published, row.where) == ("70.0 to 240.0 %", "IV-B, Fig. 10")


def test_ranges_for_the_eye() -> None:
    assert span(1.0, 1.0, "x") == "1.00×" and span(1.0, 2.5, "s") == "1.0 to 2.5 s"
    assert rises([1, 2, 3]) and not rises([1, 1]) and rises([])


def test_ssjf_formulation_rows() -> None:
    modes, orders = ("none", "dynamic", "continuous"), {"fcfs": (10.0, 1.0), "ssjf": (6.0, 2.0)}
    points = ["ordinal classes, MSE", "ordinal classes, L1", "classes", "regression, MSE", "regression, L1"]
    lines = [
        line(f"{order}-{mode}", point, mean=mean, first_quarter=quarter)
        for point in points
        for mode in modes
        for order, (mean, quarter) in orders.items()
    ]
    rows = formulation_rows(lines, "first_quarter")
    assert len(rows) == 10 and {row.measured for row in rows} == {"40.0 %", "2.00×"}
    last = found(rows, "regression, L1, 61.5% right: throughput")
    assert last.published == "2.21×" and last.document["measured"] == dict.fromkeys(modes, pytest.approx(2.0))
    idle = [replace(one, trial=replace(one.trial, first_quarter=0.0)) for one in lines]
    assert "skipped" in formulation_rows(idle, "first_quarter")[1].measured, "nothing was answered in time"
