"""The arena in miniature: who plays, what is measured by hand, and the page."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from loadgen.bench.measures import measure_fairness
from loadgen.experiments.grid import run
from loadgen.experiments.grid.cells import (
    ALL,
    BASE,
    LOADS,
    MACHINES,
    ORDERS,
    Cell,
    all_cells,
    find_loads,
    list_players,
    load_lengths,
)
from loadgen.experiments.grid.run import make_page, play_all, tabulate, tabulate_measured
from loadgen.simulate.report import find_frontier
from loadgen.simulate.simulation import Served, measure_slowdown
from scheduler.strategy import STRATEGIES

HERE = Cell("A100, scarce slots", "tasks", 1.6, requests=80)
NAMES = (BASE, "srpt", "scls", "sjf-oracle-continuous")


def test_every_row_of_the_table_plays_and_orders_differ_in_the_order_alone() -> None:
    assert set(ALL) == {name for name, one in STRATEGIES.items() if one.quantization is None}
    assert {BASE, "lengthwise", "tie", "mlfq", "past-future"} <= set(ORDERS) < set(ALL)
    assert not {"vs", "ccb", "ils", "baton"} & set(ORDERS)
    assert all(BASE in list_players(cell) for cell in LOADS.values()), "what all are compared with"
    assert {len(list_players(cell)) for cell in LOADS.values()} == {len(ALL), len(ORDERS)}
    assert {cell.requests for cell in find_loads((), 80).values()} == {80, 200}


def test_another_seed_draws_every_load_anew() -> None:
    """Loads that nobody has tuned on: the seed is a flag."""
    usual, others = (find_loads((), 80, seed).values() for seed in (0, 5))
    assert {one.seed for one in others} == {5}
    for one, other in zip(usual, others, strict=True):
        drawn, anew = (load_lengths(cell.load, cell.requests, cell.seed) for cell in (one, other))
        assert len(drawn) == len(anew) and drawn != anew
    assert {cell.seed for cell in all_cells((), range(5, 7))} == {5, 6}


def test_fairness_is_jains_index_of_what_requests_took_beside_alone() -> None:
    assert measure_fairness([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert measure_fairness([1.0, 3.0]) == pytest.approx(16 / 20)
    one = Served(5.0, 6.0, 7.0, 13.0, 100, 11, 1, None)
    alone = 0.02 + 100 * 9e-4 + 10 * (0.0405 + 8e-4 + 1.15e-6 * 105.5)
    assert measure_slowdown(one, MACHINES["small CPU"].cost) == pytest.approx(8.0 / alone)


def test_the_frontier_is_what_none_beats_in_both() -> None:
    rows = {"a": (1.0, 9.0), "b": (2.0, 5.0), "worse": (2.0, 6.0), "c": (4.0, 4.0), "d": (5.0, 5.0)}
    assert find_frontier(rows) == {"a", "b", "c"}


def test_one_page_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = {
        "strategy": "vs",
        "rho": 0.9,
        "requests": 7,
        "quantities": {"mean JCT (s)": {"real": 2.0, "deviation": 0.01}},
    }
    (tmp_path / "tiny.json").write_text(
        json.dumps({"machine": {"processor": "a CPU", "cores": "2"}, "verdicts": [verdict]})
    )
    monkeypatch.setattr(run, "MEASURED", tmp_path)
    trace = tmp_path / "few.csv"
    lines = [f"2023-11-16 18:00:{second},50,{5 + 17 * second % 90}" for second in range(10, 40)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    traced = find_loads([str(trace)], 80)[f"{trace}, too many come"]
    loads = {"too many come": HERE, "as in the trace": traced}
    runs = [(HERE, STRATEGIES[name]) for name in NAMES] + [(traced, STRATEGIES[name]) for name in NAMES[:2]]
    results, _ = play_all(tmp_path / "arena.jsonl", runs, Console(file=io.StringIO()))
    assert set(results[HERE]) == set(NAMES)
    rows = results[HERE]
    assert rows["srpt"]["mean_jct_ms"] < rows[BASE]["mean_jct_ms"] < rows["scls"]["mean_jct_ms"]
    table, other = tabulate(results, loads)
    assert "baton-pd" in str(other.rows[0][0]) and "few, ρ 1.6" in other.caption
    assert [row[0] for row in table.rows][-1] == "scls" and any(str(row[0]).startswith("▲") for row in table.rows)
    assert "2 (+1.0 %)" in next(iter(tabulate_measured())).rows[0]
    page = make_page(results, loads)
    assert "<svg" in page and "<script>" in page and "too many come" in page
