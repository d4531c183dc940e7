"""Pages made from Jinja2 templates, and their plots as static SVG, drawn by Vega-Lite. Colours are variables of the
page's style sheet, for light and for dark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeAlias

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from loadgen.console import Table, format_number
from models.errors import UserError

SUMMARY = Path(__file__).with_name("summary.html.j2")
"""A page of `lines`, then `plots`, then `tables`."""


def render_page(template: Path, **values: object) -> str:
    """The text of a page that needs nothing else: no script, no font, no picture from anywhere."""
    loader = FileSystemLoader([template.parent, Path(__file__).parent])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template.name).render(values)


Spec: TypeAlias = dict[str, object]
"""A Vega-Lite specification, or a part of one."""

INSTALL = "pip install 'lengthwise[report]'"
"""Installs what draws the plots."""

WIDTH, HEIGHT, BAR_HEIGHT = 420, 290, 38
COLOURS = 6
SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross")
DASHES = ([1, 0], [7, 3], [2, 3], [9, 3, 2, 3])
WHISKER_SHIFT = 5.0
"""Pixels between the whiskers of two series at the same x, which would hide each other."""
STYLE = Path(__file__).with_name("plot_style.json")
"""Vega-Lite's `config` of every plot."""


class Point(NamedTuple):
    """A point of a plot, in units of its axes."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one name, in order of x."""

    name: str
    points: Sequence[Point]
    look: int
    """Selects the colour, shape and dash, which are the same in every plot of a page."""
    ranges: Sequence[tuple[float, float]] = ()
    """The lowest and highest y of each point, drawn as whiskers; empty: none."""


@dataclass(frozen=True, slots=True)
class Bar:
    """The figure of one name, and the range in which it lies."""

    name: str
    look: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot, the sentence that stands for it where it is not seen, and its figures as a table."""

    title: str
    description: str
    spec: Mapping[str, object]
    table: Table | None = None

    def draw(self) -> Markup:
        """The plot as an `<svg>` element for a page."""
        import vl_convert  # of the extra [report]

        begin, _, rest = vl_convert.vegalite_to_svg(
            {**self.spec, "config": orjson.loads(STYLE.read_bytes())}
        ).partition(">")
        begin = re.sub(r' xmlns(:\w+)?="[^"]*"', "", begin)  # which HTML has no need of
        opening = Markup('{} role="img" aria-label="{}"><desc>{}</desc>')
        return opening.format(Markup(begin), self.title, self.description) + Markup(rest)


def can_draw() -> bool:
    """Whether the package that draws plots is installed."""
    return find_spec("vl_convert") is not None


def require_drawing(path: Path | None, flag: str) -> None:
    """Raise UserError where a page with plots is asked for and the package that draws them is not installed."""
    if path is not None and not can_draw():
        raise UserError(f"{flag} needs {INSTALL}")


def specify_lines(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    steps: bool = False,
    bands: bool = False,
) -> Spec:
    """Lines over common axes: where series have ranges, with marks and whiskers or with bands; a step stays level to
    the next x."""
    marked = not bands and any(one.ranges for one in series)
    line = {"type": "line", "interpolate": "step-after" if steps else "linear", "clip": False}
    layers = []
    for place, one in enumerate(series):
        shift = (place - (len(series) - 1) / 2) * min(WHISKER_SHIFT, 20 / len(series)) if marked else 0.0
        parts: list[Spec] = [{"mark": {**line, "xOffset": shift}}]
        if bands:
            edges = {"y": {"field": "low", "type": "quantitative", "title": y_label}, "y2": {"field": "high"}}
            fill = {"type": "area", "opacity": 0.16, "stroke": None}
            parts.insert(0, {"mark": fill, "encoding": {**edges, "strokeDash": {"value": [1, 0]}}})
        elif marked:
            whisker = {"type": "errorbar", "rule": {"xOffset": shift}, "ticks": {"xOffset": shift, "size": 6}}
            low_and_high = {"y": {"field": "low", "type": "quantitative", "title": y_label}, "y2": {"field": "high"}}
            parts.append({"mark": whisker, "encoding": low_and_high})
            parts.append({"mark": {"type": "point", "xOffset": shift}, "encoding": {"shape": _shapes(series)}})
        layers.append({"data": {"values": _rows(one)}, "layer": parts})
    x: Spec = {"field": "x", "type": "quantitative", "title": x_label, "scale": {"zero": True}}
    encoding: Spec = {"x": x, "y": _height(y_label), "color": _colours(series)}
    if not marked:
        encoding["strokeDash"] = _scale(series, [DASHES[one.look % len(DASHES)] for one in series])
        long_enough = {"symbolType": "stroke", "symbolSize": 700, "symbolStrokeWidth": 2}  # for the dashes
        encoding["color"] = {**_colours(series), "legend": {**_legend(series), **long_enough}}
    return {**_frame(HEIGHT), "encoding": encoding, "layer": layers}


def specify_points(series: Sequence[Series], x_label: str, y_label: str) -> Spec:
    """A mark for every point."""
    x = {"field": "x", "type": "quantitative", "title": x_label}
    encoding = {"x": x, "y": _height(y_label), "color": _colours(series), "shape": _shapes(series)}
    rows = [row for one in series for row in _rows(one)]
    mark = {"type": "point", "fillOpacity": 0.7}
    return {**_frame(HEIGHT), "data": {"values": rows}, "mark": mark, "encoding": encoding}


def specify_named_points(
    points: Mapping[str, Point], named: Iterable[str], x_label: str, y_label: str, corner: Point
) -> Spec:
    """A faint mark for every point, and the names of some of them; what is beyond the corner is left out, so that it
    does not press all others together."""
    near = {name: one for name, one in points.items() if one.x <= corner.x and one.y <= corner.y}
    rows = [{"name": name, "x": one.x, "y": one.y} for name, one in near.items()]
    alike: dict[tuple[str, str], list[str]] = {}
    for name in (one for one in dict.fromkeys(named) if one in near):
        alike.setdefault((format_number(near[name].x), format_number(near[name].y)), []).append(name)
    best = [
        {"name": first if not others else f"{first} and {len(others)} more", "x": near[first].x, "y": near[first].y}
        for first, *others in alike.values()
    ]
    scale = {"zero": False, "padding": 20}
    encoding = {
        axis: {"field": axis, "type": "quantitative", "title": title, "scale": scale}
        for axis, title in (("x", x_label), ("y", y_label))
    }
    label = {"type": "text", "align": "left", "dx": 6, "dy": -6}
    layers = [
        {"data": {"values": rows}, "mark": {"type": "point", "color": "var(--faint)"}},
        {"data": {"values": best}, "mark": {"type": "point", "color": "var(--c0)"}},
        {"data": {"values": best}, "mark": label, "encoding": {"text": {"field": "name"}}},
    ]
    return {**_frame(HEIGHT), "encoding": encoding, "layer": layers}


def specify_bars(bars: Sequence[Bar], label: str) -> Spec:
    """A bar for every name, with whiskers and its figure; `label` says what the axis counts."""
    rows = [
        {"name": bar.name, "value": bar.value, "low": bar.low, "high": bar.high, "end": max(bar.value, bar.high)}
        | {"figure": format_number(bar.value)}
        for bar in bars
    ]
    x = {"type": "quantitative", "title": label}
    colour = {**_colours(bars), "legend": None}
    return {
        **_frame(BAR_HEIGHT * len(bars) + 56),
        "padding": {"left": 5, "top": 5, "bottom": 5, "right": 52},  # room for the figure of the longest bar
        "data": {"values": rows},
        "encoding": {"y": {"field": "name", "type": "nominal", "sort": None, "axis": None}},
        "layer": [
            {
                "mark": {"type": "text", "align": "left", "dx": 2, "dy": -10},
                "encoding": {"x": {"value": 0}, "text": {"field": "name"}},
            },
            {
                "mark": {"type": "bar", "fillOpacity": 0.4, "height": 13, "yOffset": 7},
                "encoding": {"x": {**x, "field": "value"}, "color": colour},
            },
            {
                "mark": {"type": "errorbar", "rule": {"yOffset": 7}, "ticks": {"yOffset": 7, "size": 9}},
                "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": colour},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 7, "dy": 7},
                "encoding": {"x": {**x, "field": "end"}, "text": {"field": "figure"}},
            },
        ],
    }


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """At most about `most` points that draw the same line: of each stretch its first, lowest, highest and last."""
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


def _frame(height: int) -> Spec:
    return {"width": WIDTH, "height": height, "autosize": {"type": "fit", "contains": "padding"}}


def _rows(series: Series) -> list[Spec]:
    rows: list[Spec] = [{"name": series.name, "x": point.x, "y": point.y} for point in series.points]
    for row, (low, high) in zip(rows, series.ranges, strict=bool(series.ranges)):
        row |= {"low": low, "high": high}
    return rows


def _height(label: str) -> Spec:
    return {"field": "y", "type": "quantitative", "title": label, "scale": {"zero": True}}


def _colours(named: Sequence[Series | Bar]) -> Spec:
    return _scale(named, [f"var(--c{one.look % COLOURS})" for one in named])


def _shapes(series: Sequence[Series]) -> Spec:
    # Beyond six names, colours come again with other shapes.
    return _scale(series, [SHAPES[(one.look + one.look // COLOURS) % len(SHAPES)] for one in series])


def _scale(named: Sequence[Series | Bar], looks: Sequence[object]) -> Spec:
    """A look for each name."""
    scale = {"domain": [one.name for one in named], "range": looks}
    return {"field": "name", "type": "nominal", "scale": scale, "legend": _legend(named)}


def _legend(named: Sequence[Series | Bar]) -> Spec:
    """A legend with as many columns as fit."""
    columns = max(1, WIDTH // (42 + 7 * max((len(one.name) for one in named), default=0)))
    return {"columns": columns, "title": None}
