"""Pages made from Jinja2 templates, and their plots as static SVG, drawn by Vega-Lite. Colours are variables of the
page's style sheet, for light and for dark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeAlias

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from loadgen.console import format_number
from models.errors import UserError

TEMPLATES = Path(__file__).with_name("templates")
SUMMARY = TEMPLATES / "summary.html.j2"
"""A page of `lines`, then `plots`, then `tables`."""


def render_page(template: Path, **values: object) -> str:
    """The text of a page that needs nothing else: no script, no font, no picture from anywhere."""
    loader = FileSystemLoader([template.parent, TEMPLATES])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template.name).render(values)


Spec: TypeAlias = dict[str, object]
"""A Vega-Lite specification, or a part of one."""

INSTALL = "pip install 'lengthwise[report]'"
"""Installs what draws the plots."""

WIDTH = 420
COLOURS = 6
DASHES = ([1, 0], [7, 3], [2, 3], [9, 3, 2, 3])
STYLE = TEMPLATES / "plot_style.json"
"""Vega-Lite's `config` of every plot."""


class Point(NamedTuple):
    """A point of a plot, in units of its axes."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot, and the sentence that stands for it where it is not seen."""

    title: str
    description: str
    spec: Mapping[str, object]

    def draw(self) -> Markup:
        """The plot as an `<svg>` element for a page."""
        import vl_convert  # of the extra [report]

        frame = {"width": WIDTH, "height": 290, "autosize": {"type": "fit", "contains": "padding"}}
        spec = {**frame, **self.spec, "config": orjson.loads(STYLE.read_bytes())}
        begin, _, rest = vl_convert.vegalite_to_svg(spec).partition(">")
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


def specify_lines(rows: Sequence[Spec], names: Sequence[str], x_label: str, y_label: str) -> Spec:
    """A line a name through its `x` and `y`, in the band from `low` to `high`, which each row has; its colour and
    dash are those of its place among the names."""
    axes = {
        axis: {"field": axis, "type": "quantitative", "title": title, "scale": {"zero": True}}
        for axis, title in (("x", x_label), ("y", y_label))
    }
    low_and_high = {"y": {"field": "low", "type": "quantitative", "title": y_label}, "y2": {"field": "high"}}
    band = {
        "mark": {"type": "area", "opacity": 0.16, "stroke": None},
        "encoding": {**low_and_high, "strokeDash": {"value": [1, 0]}},
    }
    columns = max(1, WIDTH // (42 + 7 * max(map(len, names), default=0)))  # as many as fit
    legend = {"columns": columns, "title": None}
    # Long enough for the dashes, and not as faint as the bands.
    strokes = {"symbolType": "stroke", "symbolSize": 700, "symbolStrokeWidth": 2, "symbolOpacity": 1}
    looks: dict[str, list[object]] = {
        "color": [f"var(--c{look % COLOURS})" for look in range(len(names))],
        "strokeDash": [DASHES[look % len(DASHES)] for look in range(len(names))],
    }
    by_name = {
        channel: {
            "field": "name",
            "type": "nominal",
            "scale": {"domain": names, "range": found},
            "legend": {**legend, **(strokes if channel == "color" else {})},
        }
        for channel, found in looks.items()
    }
    return {"data": {"values": rows}, "encoding": {**axes, **by_name}, "layer": [band, {"mark": "line"}]}


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
    return {"encoding": encoding, "layer": layers}
