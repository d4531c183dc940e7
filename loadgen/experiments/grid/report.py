"""The grid's figures as tables for a terminal and a picture of mean against p99, a plot a load."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadgen.experiments.grid.cells import ALIKE, HARD, USUAL, Cell
from loadgen.experiments.grid.contenders import CONTENDERS
from loadgen.experiments.grid.figures import Difference, Results, compare

HEADS = ("", "mean JCT", "p99", "longest", "worst mean", "worst p99", "worst longest", "least req/s", "beyond")
"""Differences in %, but for `beyond`: the cells in which a rule is worse than 5 % in mean or 10 % in p99."""


def show(results: Results, console: Console) -> None:
    """Print a table over all cells, one a machine and load with usual predictions, and one a quality of these."""
    for title, cells in group_cells(results).items():
        table = Table(*HEADS, title=f"{title}: {len(cells)} cells, difference to first come, first served in %")
        for one in compare(results, tuple(CONTENDERS), cells):
            table.add_row(*_cells(one))
        console.print(table)


def group_cells(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """The cells of each table; most are in several."""
    groups: dict[str, list[Cell]] = {"all": []}
    for cell in cells:
        groups["all"].append(cell)
        if cell.prediction == USUAL:
            groups.setdefault(cell.machine, []).append(cell)
            groups.setdefault(Path(cell.load).stem, []).append(cell)
        if cell.rho == HARD and cell.load not in ALIKE:
            groups.setdefault(cell.prediction, []).append(cell)
    return groups


def _cells(one: Difference) -> tuple[str, ...]:
    ratios = (one.mean, one.p99, one.longest, one.worst_mean, one.worst_p99, one.worst_longest, one.least_throughput)
    return (one.contender, *(f"{(ratio - 1) * 100:+.1f}" for ratio in ratios), f"{one.beyond}")


def draw(results: Results) -> str:
    """The picture as SVG: for each load the differences of all contenders in p99 (x) and mean JCT (y), in %."""
    import vl_convert  # of the extra [report]

    loads: dict[str, list[Cell]] = {}
    for cell in results:
        loads.setdefault(Path(cell.load).stem, []).append(cell)
    rows = [
        {"load": load, "rule": one.contender, "x": (one.p99 - 1) * 100, "y": (one.mean - 1) * 100}
        for load, cells in sorted(loads.items())
        for one in compare(results, tuple(CONTENDERS), cells)
    ]
    rule = {"field": "rule", "type": "nominal", "scale": {"domain": list(CONTENDERS)}, "legend": {"title": None}}
    encoding = {
        "x": {"field": "x", "type": "quantitative", "title": "p99 JCT, %"},
        "y": {"field": "y", "type": "quantitative", "title": "mean JCT, %"},
        "color": rule,
        "shape": rule,
    }
    spec = {
        "data": {"values": rows},
        "facet": {"field": "load", "type": "nominal", "title": None},
        "columns": 3,
        "spec": {"width": 220, "height": 170, "mark": {"type": "point", "filled": True}, "encoding": encoding},
        "config": {"background": "white", "point": {"size": 70, "opacity": 0.9}, "legend": {"orient": "bottom"}},
    }
    return str(vl_convert.vegalite_to_svg(spec))
