"""Line charts as SVG, with nothing else needed to show them. Knows points and names, not what they mean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple
from xml.etree.ElementTree import Element, SubElement, tostring

from loadgen.plots.scale import linear, logarithmic, number
from loadgen.plots.svg import STYLE, WIDTH, dash, frame, group, mark, path, text

PLOT_HEIGHT = 220
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 42
HEADING = 26
LEGEND_LINE = 18
LETTER = 7.4
"""About the width of a letter of the legend."""
DODGE = 4.0
"""Lines with whiskers are drawn so many pixels apart, or they would hide each other."""


class Point(NamedTuple):
    """A place in a chart, in units of its axes."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Line:
    """One curve. Its points are in order of x."""

    name: str
    points: Sequence[Point]
    ranges: Sequence[tuple[float, float]] = ()
    """The lowest and highest y of each point, drawn as whiskers; empty: none."""
    look: int | None = None
    """Which colour, mark and dash, the same in every chart of a page; None takes the line's place in its chart."""
    joined: bool = True
    marked: bool = False
    """Whether its points have marks."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Some curves over common axes, which both begin at 0 or below unless one is logarithmic."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    description: str = ""
    """What the chart shows, for those who cannot see it; empty: its labels and names."""
    logarithmic_x: bool = False
    """With a tick at every x, all of which are above 0."""

    def svg(self) -> str:
        """The chart as one `<svg>` element with a heading, its style inside."""
        root = self.element("chart", heading=True)
        style = Element("style")
        style.text = STYLE
        root.insert(0, style)
        root.set("xmlns", "http://www.w3.org/2000/svg")
        return tostring(root, encoding="unicode")

    def element(self, key: str, heading: bool = False) -> Element:
        """The chart for a page that holds STYLE itself; `key` makes its ids unique there."""
        return _Drawing(self, key, heading).root


class _Drawing:
    """Puts a chart's parts into an element."""

    def __init__(self, chart: Chart, key: str, heading: bool) -> None:
        self._chart = chart
        self._x = (logarithmic if chart.logarithmic_x else linear)([p.x for line in chart.lines for p in line.points])
        self._y = linear(_heights(chart.lines))
        self._top = TOP + (HEADING if heading else 0)
        self._bottom = self._top + PLOT_HEIGHT
        rows = _legend_rows(chart.lines)
        height = self._bottom + BOTTOM + LEGEND_LINE * len(rows)
        self.root = frame(chart.title, chart.description or _described(chart), height, key)
        SubElement(self.root, "rect", {"class": "ground", "width": "100%", "height": "100%"})
        if heading:
            text(self.root, WIDTH / 2, 20, chart.title, "heading", "middle")
        self._axes()
        for place, line in enumerate(chart.lines):
            self._line(line, _look(line, place), place)
        self._legend(rows)

    def _axes(self) -> None:
        for value in self._y.ticks:
            y = self._down(value)
            path(self.root, "axis" if value == 0 else "grid", f"M{LEFT},{y:.1f}H{WIDTH - RIGHT}")
            text(self.root, LEFT - 6, y + 4, number(value), "tick", "end")
        for value in self._x.ticks:
            path(self.root, "axis", f"M{self._across(value):.1f},{self._bottom}v4")
            text(self.root, self._across(value), self._bottom + 17, number(value), "tick", "middle")
        text(self.root, (LEFT + WIDTH - RIGHT) / 2, self._bottom + 35, self._chart.x_label, anchor="middle")
        middle = (self._top + self._bottom) / 2
        label = text(self.root, 14, middle, self._chart.y_label, anchor="middle")
        label.set("transform", f"rotate(-90 14 {middle:g})")

    def _line(self, line: Line, look: int, place: int) -> None:
        own = group(self.root, look)
        SubElement(own, "title").text = line.name
        dodge = self._dodge(place)
        places = [(self._across(point.x) + dodge, self._down(point.y)) for point in line.points]
        if line.joined and len(places) > 1:
            path(own, "line", "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in places), **_dashed(look))
        for (x, _), (low, high) in zip(places, line.ranges, strict=bool(line.ranges)):
            path(own, "whisker", f"M{x - 3:.1f},{self._down(high):.1f}h6m-3,0V{self._down(low):.1f}m-3,0h6")
        for point, (x, y) in zip(line.points, places, strict=True) if line.marked else ():
            drawn = path(own, "mark", mark(look), transform=f"translate({x:.1f} {y:.1f})")
            SubElement(drawn, "title").text = f"{line.name}, {number(point.x)}: {number(point.y)}"

    def _dodge(self, place: int) -> float:
        """Pixels to the right."""
        lines = self._chart.lines
        if not any(line.ranges for line in lines):
            return 0.0
        return (place - (len(lines) - 1) / 2) * min(DODGE, 16 / len(lines))

    def _legend(self, rows: Sequence[Sequence[tuple[int, Line]]]) -> None:
        y = self._bottom + BOTTOM + 8.0
        for row in rows:
            x = 10.0
            for look, line in row:
                own = group(self.root, look)
                if line.joined:
                    path(own, "line", f"M{x:.1f},{y}h24", **_dashed(look))
                if line.marked:
                    path(own, "mark", mark(look), transform=f"translate({x + 12:.1f} {y})")
                text(self.root, x + 29, y + 4, line.name)
                x += _entry_width(line)
            y += LEGEND_LINE

    def _across(self, value: float) -> float:
        return LEFT + self._x.share(value) * (WIDTH - LEFT - RIGHT)

    def _down(self, value: float) -> float:
        return self._bottom - self._y.share(value) * PLOT_HEIGHT


def _heights(lines: Sequence[Line]) -> list[float]:
    ends = [end for line in lines for both in line.ranges for end in both]
    return [*ends, *(point.y for line in lines for point in line.points)]


def _look(line: Line, place: int) -> int:
    return place if line.look is None else line.look


def _dashed(look: int) -> dict[str, str]:
    return {"stroke-dasharray": dash(look)}


def _described(chart: Chart) -> str:
    names = ", ".join(line.name for line in chart.lines)
    return f"{chart.y_label} against {chart.x_label} for {names}."


def _legend_rows(lines: Sequence[Line]) -> list[list[tuple[int, Line]]]:
    """Each line with its look, as many in a row as have room."""
    rows: list[list[tuple[int, Line]]] = []
    used = float(WIDTH)
    for place, line in enumerate(lines):
        if used + _entry_width(line) > WIDTH - RIGHT:
            rows.append([])
            used = 10.0
        rows[-1].append((_look(line, place), line))
        used += _entry_width(line)
    return rows


def _entry_width(line: Line) -> float:
    return 40 + LETTER * len(line.name)


# Curves of many points


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most about `most` points that draw the same curve: of each stretch its first, lowest, highest and last."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(4 * len(points) / most)
    kept: list[Point] = []
    for begin in range(0, len(points), size):
        stretch = range(begin, min(begin + size, len(points)))
        lowest = min(stretch, key=lambda place: points[place].y)
        highest = max(stretch, key=lambda place: points[place].y)
        kept += [points[place] for place in sorted({stretch[0], lowest, highest, stretch[-1]})]
    return kept


def stairs(points: Sequence[Point]) -> list[Point]:
    """The same as a curve that changes at points only and is level between them."""
    return list(_stairs(points))


def _stairs(points: Sequence[Point]) -> Iterator[Point]:
    for before, after in pairwise(points):
        yield before
        yield Point(after.x, before.y)
    yield from points[-1:]
