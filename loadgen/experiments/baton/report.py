"""The tables of the Baton paper as measured here, for a terminal and as a page with plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rich import table as rich_table
from rich.console import Console

from loadgen.experiments.baton.results import POINTS, Line, Table
from loadgen.html import table as html_table
from loadgen.html.page import render_page
from loadgen.html.plot import Plot, Point, Series, specify_lines, thin

COLUMNS = (
    "batch",
    "method",
    "seconds",
    "throughput",
    "paper, seconds",
    "paper, throughput",
    "invalid tokens",
    "padding",
    "peak K and V, MiB",
    "same answers",
)
"""Throughput is relative to Benchmark's. Invalid tokens and padding are shares of all tokens computed of their kind."""

MIB = 2**20
PLOTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "completed": ("Queries completed", "queries"),
        "tokens": ("Tokens generated", "tokens"),
        "kv_bytes": ("K and V in the running batch", "MiB"),
    }
)
"""Title and unit of the plot of each curve."""

TEMPLATE = Path(__file__).with_name("report.html.j2")


def show(tables: Sequence[Table], console: Console) -> None:
    """Print every table."""
    for table in tables:
        shown = rich_table.Table(*COLUMNS, title=table.title)
        for size, lines in table.lines.items():
            for line in lines:
                shown.add_row(*_write_cells(size, line), end_section=line is lines[-1])
        console.print(shown)


def make_page(tables: Sequence[Table], setting: Mapping[str, object]) -> str:
    """All tables and plots as one HTML document that needs nothing else."""
    about = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in setting.items())
    sections = [(table.title, _tabulate(table), make_plots(table)) for table in tables]
    return render_page(TEMPLATE, title="Baton's tables", about=about, sections=sections)


def make_plots(table: Table) -> list[Plot]:
    """The paper's Figures 6, 7 and 8 for each batch size."""
    return [
        _plot(f"{title}, batch of {size}", unit, name, lines)
        for size, lines in table.lines.items()
        for name, (title, unit) in PLOTS.items()
    ]


def _plot(title: str, unit: str, name: str, lines: Sequence[Line]) -> Plot:
    scale = MIB if unit == "MiB" else 1
    series = [
        Series(line.method, [Point(x, y / scale) for x, y in thin(line.races[-1].curves[name], POINTS)], look)
        for look, line in enumerate(lines)
    ]
    described = f"{unit} against seconds for {', '.join(line.method for line in lines)}."
    return Plot(title, described, specify_lines(series, "seconds", unit, steps=name == "completed"))


def _tabulate(table: Table) -> html_table.Table:
    rows = tuple(_write_cells(size, line) for size, lines in table.lines.items() for line in lines)
    return html_table.Table("Completion times and throughput", COLUMNS, rows)


def _write_cells(size: int, line: Line) -> tuple[str, ...]:
    last = line.races[-1]
    tally = last.tally
    return (
        str(size),
        line.method,
        f"{line.seconds:.2f}",
        f"{line.speedup:.2f}",
        "-" if line.paper_seconds is None else f"{line.paper_seconds:g}",
        "-" if line.paper_speedup is None else f"{line.paper_speedup:.2f}",
        f"{_share(tally.invalid, tally.generated):.0%}",
        f"{_share(tally.pad, tally.prompt):.0%}",
        f"{last.peak_kv_bytes / MIB:.1f}",
        f"{line.same_answers}/{line.queries}",
    )


def _share(part: int, rest: int) -> float:
    return part / (part + rest) if part else 0.0
