"""A sweep's figures as CSV for a notebook, and as one page: curves over the first axis, and who is worth choosing."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loadgen.bench.distribution import Distribution
from loadgen.console import format_number
from loadgen.html.page import SUMMARY, render_page
from loadgen.html.plot import Plot, Series, specify_lines, specify_points
from loadgen.html.plot import Point as Mark
from loadgen.html.table import Table
from loadgen.simulate.figures import SimulatedFigures
from loadgen.simulate.report import figures_json, find_frontier
from loadgen.simulate.sweep.axes import Axis, Point, name_values

HEADS = ("strategy", "mean JCT s", "p99 s", "longest s", "mean TTFT s", "req/s", "failed")
READING = (
    "Simulated, with the same requests for all strategies at a point. ▲: no other strategy has a lower mean and a "
    "lower p99 at that point."
)


Found: TypeAlias = tuple[Point, Mapping[str, SimulatedFigures]]
"""A point and its figures, by strategy."""

Measure: TypeAlias = Callable[[int, Distribution], float]
"""A figure of completion times at the point with this number."""


@dataclass(frozen=True, slots=True)
class Swept:
    """The figures of all strategies at all points, in the order of the points."""

    axes: tuple[Axis, ...]
    points: Sequence[Found]


def write_csv(swept: Swept) -> str:
    """A line a point and strategy: the axes' values, then all figures."""
    rows = [
        {axis.name: text for axis, text in zip(swept.axes, point.texts, strict=True)}
        | {"strategy": name, **figures_json(one)}
        for point, found in swept.points
        for name, one in found.items()
    ]
    file = io.StringIO()
    # Where no request was completed, there are fewer figures.
    writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def make_page(swept: Swept, caption: str) -> str:
    """The text of the HTML page; for each combination of the other axes, plots over the first axis and a table."""
    groups: dict[tuple[str, ...], list[Found]] = {}
    for one in swept.points:
        groups.setdefault(one[0].texts[1:], []).append(one)
    plots: list[Plot] = []
    tables: list[Table] = []
    for texts, points in groups.items():
        name = name_values(swept.axes[1:], texts)
        plots += _draw(swept.axes, points, name)
        tables.append(_tabulate(swept.axes, points, name))
    lines = [caption, READING]
    return render_page(SUMMARY, title="Strategies in the simulator", lines=lines, plots=plots, tables=tables)


def _tabulate(axes: Sequence[Axis], points: Sequence[Found], name: str) -> Table:
    rows: list[tuple[str, ...]] = []
    for point, found in points:
        front = find_frontier({one: _bounds(figures.jct) for one, figures in found.items() if figures.jct})
        rows += [(*point.texts[:1], *_row(one, figures, one in front)) for one, figures in found.items()]
    return Table(name, (*(axis.name for axis in axes[:1]), *HEADS), tuple(rows))


def _bounds(jct: Distribution) -> tuple[float, float]:
    return jct.mean, jct.percentiles[99.0]


def _row(name: str, one: SimulatedFigures, front: bool) -> tuple[str, ...]:
    jct, ttft = one.jct, one.ttft
    times = (
        ("-",) * 4
        if jct is None or ttft is None
        else map(format_number, (*_bounds(jct), jct.percentiles[100.0], ttft.mean))
    )
    return (f"▲ {name}" if front else name, *times, format_number(one.request_throughput), str(one.failed))


def _draw(axes: Sequence[Axis], points: Sequence[Found], name: str) -> list[Plot]:
    """Mean and p99 over the first axis where its values are numbers, and mean against p99."""
    at = f" at {name}" if name else ""

    def trace(x: Measure, y: Measure) -> list[Series]:
        return [
            Series(
                strategy, [Mark(x(place, jct), y(place, jct)) for place, jct in _completions(points, strategy)], look
            )
            for look, strategy in enumerate(points[0][1])
        ]

    def mean(place: int, jct: Distribution) -> float:
        return jct.mean

    def p99(place: int, jct: Distribution) -> float:
        return jct.percentiles[99.0]

    plots = []
    for axis in axes[:1]:
        if (numbers := axis.numbers) is not None:
            for label, measure in (("mean JCT, s", mean), ("p99 JCT, s", p99)):
                spec = specify_lines(trace(lambda place, _, x=numbers: x[place], measure), axis.name, label)  # type: ignore[misc]
                plots.append(Plot(f"{label} over {axis.name}{at}", "A line a strategy, from the table below.", spec))
    spec = specify_points(trace(p99, mean), "p99 JCT, s", "mean JCT, s")
    return [*plots, Plot(f"Mean against p99{at}", "A mark a strategy and point, from the table below.", spec)]


def _completions(points: Sequence[Found], strategy: str) -> Iterator[tuple[int, Distribution]]:
    """The completion times of a strategy at each point, by the point's number, where any request was completed."""
    for place, (_, found) in enumerate(points):
        if (jct := found[strategy].jct) is not None:
            yield place, jct
