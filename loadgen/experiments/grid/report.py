"""The grid's tables for a terminal; and the arena's page: a table a load that can be sorted, and mean against p99 with
those that no other beats in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from loadgen import console
from loadgen.console import Table, show_table
from loadgen.experiments.grid.cells import BASE, Cell, group_cells
from loadgen.experiments.grid.run import KINDS, Difference, Results, compare
from loadgen.plot import render_page
from loadgen.simulate.report import draw_frontier, mark_best

HEADS = ("", "JCT", "TTFT", "normalized latency", "slowdown", "median TTFT", "worst cells", "latest", "least req/s")
READING = (
    "Differences to first come, first served in %, geometric means over cells: mean / p99 / worst request. "
    "Worst cells: the largest difference of mean / p99 JCT. Latest: by how much a request ended later, at most, as a "
    "share of the p99 JCT of first come, first served. Normalized latency: JCT by tokens of the answer."
)


def show(results: Results, contenders: Sequence[str], requests: int, console: Console) -> None:
    """Print a table for each group of cells."""
    console.print(READING)
    for title, cells in group_cells([*results], requests).items():
        rows = tuple((name, *_cells(one)) for name, one in compare(results, contenders, cells).items())
        console.print(show_table(Table(f"{title}: {len(cells)} cells", HEADS, rows)))


def _cells(one: Difference) -> tuple[str, ...]:
    typical, most = one["typical"], one["most"]
    return (
        *(" / ".join(f"{typical[f'{part}_{kind}']:+.1f}" for part in ("mean", "p99", "p100")) for kind in KINDS),
        f"{typical['median_ttft_ms']:+.1f}",
        f"{most['mean_jct_ms']:+.1f} / {most['p99_jct_ms']:+.1f}",
        f"{most['later']:.2f}",
        f"{one['least']['request_throughput']:+.1f}",
    )


TEMPLATE = Path(__file__).with_name("arena.html.j2")
MEASURED = Path(__file__).parents[3] / "docs" / "research" / "validation"
"""Result files of `simulate --validate`."""

KEYS = (
    *("mean_jct_ms", "p99_jct_ms", "p100_jct_ms", "mean_normalized_latency_s", "mean_slowdown"),
    *("wait", "mean_ttft_ms", "request_throughput", "jain_fairness_index"),
)


def tabulate(results: Results, loads: Mapping[str, Cell]) -> Iterator[Table]:
    """A table a load: BASE, then the others with their differences to it, by rising mean; ▲ marks the frontier."""
    for name, cell in loads.items():
        rows = results[cell]
        ordered = sorted(rows, key=lambda one: (one != BASE, rows[one]["mean_jct_ms"]))
        marked = mark_best({one: [rows[one]] for one in ordered})
        yield console.tabulate(f"{name}: {cell.described}", marked, KEYS)


def tabulate_measured() -> Iterator[Table]:
    """A table a result file: what the real engine did, and how far the simulator was from it."""
    for file in sorted(MEASURED.glob("*.json")):
        found = msgspec.json.decode(file.read_bytes())
        rows = []
        for one in found["verdicts"]:
            figures = one["quantities"]
            cells = [f"{figures[name]['real']:.3g} ({100 * figures[name]['deviation']:+.1f} %)" for name in figures]
            rows.append((f"{one['strategy']}, ρ {one['rho']:g}", str(one["requests"]), *cells))
        heads = ("", "requests", *found["verdicts"][0]["quantities"])
        yield Table(f"{file.stem}, on {found['machine']['processor']}, {found['machine']['cores']}", heads, tuple(rows))


def make_page(results: Results, loads: Mapping[str, Cell]) -> str:
    """The text of the HTML page."""
    plots = [
        draw_frontier(name, {one: [found] for one, found in results[cell].items()}) for name, cell in loads.items()
    ]
    values = {"tables": list(tabulate(results, loads)), "measured": list(tabulate_measured()), "plots": plots}
    return render_page(TEMPLATE, title="The arena: every strategy on the same loads", base=BASE, **values)
