"""The arena's page: a table a load that can be sorted, and mean against p99 with those that no other beats in both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from loadgen.console import Cell as TableCell
from loadgen.console import Table, format_number
from loadgen.experiments.grid.cells import BASE, ArenaLoad
from loadgen.experiments.grid.run import Figures, Results
from loadgen.html.plot import Plot, Point, render_page, specify_named_points
from loadgen.simulate.report import find_frontier

TEMPLATE = Path(__file__).with_name("arena.html.j2")
MEASURED = Path(__file__).parents[3] / "docs" / "research" / "validation"
"""Result files of `simulate --validate`."""

HEADS = ("", "mean JCT s", f"to {BASE} %", "p99 s", f"to {BASE} %", "longest s", "s a token", f"to {BASE} %",
         "slowdown", "longest wait s", "mean TTFT s", "req/s", "fairness")  # fmt: skip

NEAR = 2.0
"""Ratio to BASE, in mean and in p99, up to which a strategy is drawn."""


def _find_best(rows: Mapping[str, Figures]) -> set[str]:
    return find_frontier({name: (one["jct_mean"], one["jct_p99"]) for name, one in rows.items()})


def tabulate(results: Results, loads: Mapping[str, ArenaLoad]) -> Iterator[Table]:
    """A table a load, the least mean first; ▲ marks the frontier."""
    for name, load in loads.items():
        rows = results[load.cell]
        front, base = _find_best(rows), rows[BASE]
        ordered = sorted(rows, key=lambda one: rows[one]["jct_mean"])
        yield Table(
            f"{name}: {load.cell.described}",
            HEADS,
            tuple(_row(one, rows[one], base, one in front) for one in ordered),
        )


def _row(name: str, one: Figures, base: Figures, front: bool) -> tuple[str | TableCell, ...]:
    def beside(figure: str) -> tuple[str, str]:
        return format_number(one[figure]), f"{100 * (one[figure] / base[figure] - 1):+.1f}"

    last = ("slowdown_mean", "wait", "ttft_mean", "throughput")
    return (
        f"▲ {name}" if front else name,
        *beside("jct_mean"),
        *beside("jct_p99"),
        format_number(one["jct_worst"]),
        *beside("normalized_mean"),
        *(format_number(one[figure]) for figure in last),
        f"{one['fairness']:.2f}",
    )


def tabulate_measured(folder: Path = MEASURED) -> Iterator[Table]:
    """A table a result file: what the real engine did, and how far the simulator was from it."""
    for file in sorted(folder.glob("*.json")):
        found = msgspec.json.decode(file.read_bytes())
        rows = []
        for one in found["verdicts"]:
            figures = one["quantities"]
            cells = [f"{figures[name]['real']:.3g} ({100 * figures[name]['deviation']:+.1f} %)" for name in figures]
            rows.append((f"{one['strategy']}, ρ {one['rho']:g}", str(one["requests"]), *cells))
        heads = ("", "requests", *found["verdicts"][0]["quantities"])
        yield Table(f"{file.stem}, on {found['machine']['processor']}, {found['machine']['cores']}", heads, tuple(rows))


def make_page(results: Results, loads: Mapping[str, ArenaLoad]) -> str:
    """The text of the HTML page."""
    plots = [_plot(name, results[load.cell]) for name, load in loads.items()]
    values = {"tables": list(tabulate(results, loads)), "measured": list(tabulate_measured()), "plots": plots}
    return render_page(TEMPLATE, title="The arena: every strategy on the same loads", base=BASE, **values)


def _plot(name: str, rows: Mapping[str, Figures]) -> Plot:
    """Mean against p99 of what is near the frontier; strategies far beyond it are in the table alone."""
    points = {one: Point(found["jct_p99"], found["jct_mean"]) for one, found in rows.items()}
    corner = Point(NEAR * points[BASE].x, NEAR * points[BASE].y)
    spec = specify_named_points(points, _find_best(rows), "p99 JCT, s", "mean JCT, s", corner)
    return Plot(name, f"Mean and p99 JCT of strategies where {name}; the frontier is named.", spec)
