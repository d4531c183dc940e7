"""The tables for a terminal, and the page with tables and plots. Knows the results, not how they came about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from xml.etree import ElementTree

from rich import table as rich_table
from rich.console import Console

from loadgen.experiments.baton.race import Curves
from loadgen.experiments.baton.results import POINTS, Line, Table
from loadgen.plots.chart import Chart, Point, stairs, thinned
from loadgen.plots.chart import Line as Curve
from loadgen.plots.svg import STYLE as CHART_STYLE

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
"""Throughput is next to Benchmark's. Invalid tokens and padding are shares of all that was computed of their kind."""

MIB = 2**20

STYLE = (
    ":root{color-scheme:light dark}body{font:14px system-ui,sans-serif;margin:2rem auto;max-width:1260px"
    ";padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .7rem;border-bottom:1px solid #8886;"
    "text-align:right}td:nth-child(2),th:nth-child(2){text-align:left}"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(340px,1fr));gap:1rem;margin:1rem 0}"
)


def show(tables: Sequence[Table], console: Console) -> None:
    """Print every table."""
    for table in tables:
        shown = rich_table.Table(*COLUMNS, title=table.title)
        for size, lines in table.lines.items():
            for line in lines:
                shown.add_row(*_cells(size, line), end_section=line is lines[-1])
        console.print(shown)


def page(tables: Sequence[Table], setting: dict[str, object]) -> str:
    """All as one HTML document that needs nothing else."""
    body = "".join(part for number, table in enumerate(tables) for part in _section(f"table{number}", table))
    about = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in setting.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Baton\'s tables</title>'
        f"<style>{STYLE}{CHART_STYLE}</style></head>"
        f"<body><h1>Baton's tables</h1><p>{escape(about)}</p>{body}</body></html>\n"
    )


def charts(batch_size: int, lines: Sequence[Line]) -> list[Chart]:
    """The paper's Figures 6, 7 and 8 for one batch size."""
    suffix = f", batch of {batch_size}"
    return [
        _chart(f"Queries completed{suffix}", "queries", lines, lambda curves: stairs(curves.completed)),
        _chart(f"Tokens generated{suffix}", "tokens", lines, lambda curves: curves.tokens),
        _chart(f"K and V in the running batch{suffix}", "MiB", lines, lambda curves: _in_mib(curves.kv_bytes)),
    ]


def _chart(title: str, unit: str, lines: Sequence[Line], pick: Callable[[Curves], Sequence[Point]]) -> Chart:
    curves = [Curve(line.method, thinned(pick(line.races[-1].curves), POINTS)) for line in lines]
    return Chart(title, "seconds", unit, curves)


def _in_mib(points: Sequence[Point]) -> list[Point]:
    return [Point(point.x, point.y / MIB) for point in points]


def _section(key: str, table: Table) -> Iterator[str]:
    """`key` makes the ids in it unique."""
    yield f"<h2>{escape(table.title)}</h2><table><tr>{''.join(f'<th>{escape(name)}</th>' for name in COLUMNS)}</tr>"
    for size, lines in table.lines.items():
        for line in lines:
            yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(size, line))}</tr>"
    yield "</table>"
    for size, lines in table.lines.items():
        keys = (f"{key}-{size}-{number}" for number in range(3))
        drawn = (chart.element(one, heading=True) for one, chart in zip(keys, charts(size, lines), strict=True))
        yield f'<div class="charts">{"".join(ElementTree.tostring(one, encoding="unicode") for one in drawn)}</div>'


def _cells(size: int, line: Line) -> tuple[str, ...]:
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
