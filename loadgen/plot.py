"""HTML pages from Jinja2 templates, with static SVG plots by Vega-Lite."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from loadgen.console import format_number
from loadgen.result_file import require_writable
from models.errors import UserError

TEMPLATES = Path(__file__).with_name("templates")
SUMMARY = TEMPLATES / "summary.html.j2"  # `lines`, then `plots`, then `tables`


def render_page(template: Path, **values: object) -> str:
    """A page without scripts, fonts or pictures from elsewhere."""
    loader = FileSystemLoader([template.parent, TEMPLATES])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template.name).render(values)


Spec = dict[str, object]  # Vega-Lite specification, or part of one

INSTALL = "pip install 'lengthwise[report]'"  # for plots

WIDTH = 420
STYLE = TEMPLATES / "plot_style.json"  # Vega-Lite's `config`


class Point(NamedTuple):
    """In units of the axes."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Plot:
    """With the sentence that replaces it."""

    title: str
    description: str
    spec: Mapping[str, object]

    def draw(self) -> Markup:
        import vl_convert  # of the extra [report]

        frame = {"width": WIDTH, "height": 290, "autosize": {"type": "fit", "contains": "padding"}}
        spec = {**frame, **self.spec, "config": msgspec.json.decode(STYLE.read_bytes())}
        begin, _, rest = vl_convert.vegalite_to_svg(spec).partition(">")
        begin = re.sub(r' xmlns(:\w+)?="[^"]*"', "", begin)  # not needed in HTML
        opening = Markup('{} role="img" aria-label="{}"><desc>{}</desc>')
        return opening.format(Markup(begin), self.title, self.description) + Markup(rest)


def can_draw() -> bool:
    return find_spec("vl_convert") is not None


def require_report(path: Path | None) -> None:
    """Of --report. Raises UserError where it cannot be drawn or written."""
    require_writable(path, "--report")
    if path is not None and not can_draw():
        raise UserError(f"--report needs {INSTALL}")


def specify_lines(rows: Sequence[Spec], names: Sequence[str], x_label: str, y_label: str) -> Spec:
    """A line a name through `x` and `y`, in the band `low` to `high`; colours by place."""
    columns = max(1, WIDTH // (42 + 7 * max(map(len, names), default=0)))  # of the legend
    return _specify("lines", rows=rows, names=names, x_label=x_label, y_label=y_label, columns=columns)


def specify_named_points(
    points: Mapping[str, Point], named: Iterable[str], x_label: str, y_label: str, corner: Point
) -> Spec:
    """A mark for every point, names for some; points beyond the corner are left out."""
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
    return msgspec.json.decode(render_page(TEMPLATES / f"{kind}.json.j2", **values), type=dict[str, object])
