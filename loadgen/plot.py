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
    """The text of a page that needs nothing else: no script, no font, no picture from anywhere; or of another file."""
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
    columns = max(1, WIDTH // (42 + 7 * max(map(len, names), default=0)))  # of the legend, as many as fit
    return _specify("lines", rows=rows, names=names, x_label=x_label, y_label=y_label, columns=columns)


def specify_named_points(
    points: Mapping[str, Point], named: Iterable[str], x_label: str, y_label: str, corner: Point
) -> Spec:
    """A faint mark for every point, and the names of some of them; what is beyond the corner is left out, so that it
    does not press all others together."""
    near = {name: one for name, one in points.items() if one.x <= corner.x and one.y <= corner.y}
    alike: dict[tuple[str, str], list[str]] = {}
    for name in (one for one in dict.fromkeys(named) if one in near):
        alike.setdefault((format_number(near[name].x), format_number(near[name].y)), []).append(name)
    best = {
        first if not others else f"{first} and {len(others)} more": near[first] for first, *others in alike.values()
    }
    rows = [[{"name": name, **one._asdict()} for name, one in some.items()] for some in (near, best)]
    return _specify("named_points", rows=rows[0], best=rows[1], x_label=x_label, y_label=y_label)


def _specify(kind: str, **values: object) -> Spec:
    """A specification from its template."""
    spec: Spec = orjson.loads(render_page(TEMPLATES / f"{kind}.json.j2", **values))
    return spec
