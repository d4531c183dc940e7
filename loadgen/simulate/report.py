"""Simulations side by side: table, page, CSV, data."""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice, product
from math import floor
from statistics import fmean
from typing import Any, TypeAlias

from loadgen.console import BRIEF, COLUMNS, TABLES, Figures, Table, read_all, set_upright, tabulate
from loadgen.plot import TEMPLATES, Plot, Point, render_page, specify_lines, specify_named_points
from loadgen.result_file import Json
from loadgen.simulate.flags import SimulatedLoad, SimulatedMachine, SimulatedScheduling, SimulateFlags
from models.errors import UsageError
from models.options import options_of, suggest

Results: TypeAlias = Mapping[str, Sequence[Figures]]  # strategy -> figures of each seed

NOISE = "noise"  # axis of σ in `--prediction noisy:σ`; 0: oracle

RANGE = re.compile(r"([-+.\de]+):([-+.\de]+):([-+.\de]+)")
MOST = 10_000  # values of an axis; more is a slip


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    flag: str
    values: Mapping[str, object]  # by the user's texts, ranges expanded


def read_axes(sweeps: Sequence[str]) -> tuple[Axis, ...]:
    """Raises UserError."""
    axes = tuple(map(_read_axis, sweeps))
    if len({axis.flag for axis in axes}) < len(axes):
        raise UsageError("--sweep: two of them vary the same flag: write its values in one, parted by commas")
    return axes


Values: TypeAlias = Mapping[str, str]  # axis -> value as written


def list_points(flags: SimulateFlags, axes: Sequence[Axis]) -> Iterator[tuple[Values, SimulateFlags]]:
    """Every combination and its flags; the last axis varies fastest."""
    for texts in product(*(axis.values for axis in axes)):
        changes: dict[str, Any] = {axis.flag: axis.values[text] for axis, text in zip(axes, texts, strict=True)}
        yield {axis.name: text for axis, text in zip(axes, texts, strict=True)}, replace(flags, **changes)


def _read_axis(text: str) -> Axis:
    name, _, rest = text.partition("=")
    groups = (SimulatedMachine, SimulatedScheduling, SimulatedLoad)
    known = {one.name: one for group in groups for one in options_of(group) if one.name != "strategies"}
    flag = name.removeprefix("--").replace("-", "_")
    option = known.get("prediction" if flag == NOISE else flag)
    if option is None or not rest:
        near = "" if flag in known else suggest(flag, [*known, NOISE])
        raise UsageError(f"--sweep {text}: write NAME=1,2,3 or NAME=FIRST:LAST:STEP with a flag of simulate{near}")
    meant = {one: one for part in rest.split(",") for one in _write_out(text, part)}
    if flag == NOISE:
        meant = {one: "oracle" if re.fullmatch(r"0*\.?0*", one) else f"noisy:{one}" for one in meant}
    try:
        return Axis(flag, option.name, {one: option.from_text(value) for one, value in meant.items()})
    except ValueError as error:
        raise UsageError(f"--sweep {text}: {error}") from None


def _write_out(sweep: str, part: str) -> Iterator[str]:
    if (found := RANGE.fullmatch(part)) is None:
        yield part
        return
    try:
        first, last, step = map(float, found.groups())
        count = floor((last - first) / step + 1e-9) + 1
    except (ValueError, ZeroDivisionError, OverflowError):
        count = 0
    if not 0 < count <= MOST:
        raise UsageError(f"--sweep {sweep}: {part} is no range FIRST:LAST:STEP of at most {MOST:,} numbers")
    yield from (f"{first + step * place:.10g}" for place in range(count))


SIDE_BY_SIDE = 6  # strategies in columns where all figures are shown
FURTHEST = 3.0  # times the least mean or p99 that a plot shows


@dataclass(frozen=True, slots=True)
class Ran:
    point: Values
    seed: int
    strategy: str
    figures: Json
    note: str = ""  # on its requests


def _by_point(runs: Sequence[Ran]) -> Iterator[tuple[Values, Results]]:
    for point, some in groupby(runs, key=lambda one: one.point):
        found: dict[str, list[Json]] = {}
        for one in some:
            found.setdefault(one.strategy, []).append(one.figures)
        yield point, found


def _name(point: Values) -> str:
    return ", ".join(f"{axis} {text}" for axis, text in point.items())


def _label(point: Values, found: Results) -> Results:
    return {f"{_name(point)} {name}".lstrip(): one for name, one in found.items()}


def make_table(runs: Sequence[Ran], *, everything: bool) -> Table:
    """The main figures beside the first strategy's; or all."""
    failed = any(one.figures["failed"] for one in runs)
    brief = TABLES["runs"] if any("runs" in one.figures for one in runs) else BRIEF
    keys = (*TABLES["all"], *TABLES["runs"][:-1]) if everything else (*brief, "failed") if failed else brief
    table = tabulate("", (_label(point, found) for point, found in _by_point(runs)), keys)
    return set_upright(table, keys) if everything and len(table.rows) <= SIDE_BY_SIDE else table


def write_csv(runs: Sequence[Ran]) -> str:
    rows = [{**one.point, "seed": one.seed, "strategy": one.strategy, **one.figures} for one in runs]
    file = io.StringIO()
    # fewer figures where nothing was completed
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def make_page(runs: Sequence[Ran], caption: str) -> str:
    """For each combination of other axes, plots over the first axis and a table."""
    groups: dict[str, list[tuple[Values, Results]]] = {}
    for point, found in _by_point(runs):
        first, others = (dict(islice(point.items(), *cut)) for cut in ((1,), (1, None)))
        groups.setdefault(_name(others), []).append((first, found))
    plots = [plot for name, points in groups.items() for plot in _draw(points, f" at {name}" if name else "")]
    tables = [
        tabulate(name, (_label(first, mark_best(found)) for first, found in points), TABLES["page"])
        for name, points in groups.items()
    ]
    return render_page(TEMPLATES / "simulate.html.j2", lines=[caption], plots=plots, tables=tables)


def locate(found: Results) -> dict[str, Point]:
    """(p99, mean) by strategy."""
    columns = (COLUMNS["p99_jct_ms"], COLUMNS["mean_jct_ms"])
    read = {name: [read_all(column, one) for column in columns] for name, one in found.items()}
    return {name: Point(*map(fmean, values)) for name, values in read.items() if all(values)}


def mark_best(found: Results) -> Results:
    points = locate(found)
    alone = {name for name in find_frontier(points) if list(points.values()).count(points[name]) == 1}
    return {f"▲ {name}" if name in alone else name: one for name, one in found.items()}


def _draw(points: Sequence[tuple[Values, Results]], at: str) -> list[Plot]:
    """Over a numeric axis, else mean against p99 at each value."""
    axis = "".join(points[0][0])
    try:
        numbers = {float(first[axis]): found for first, found in points}
    except (KeyError, ValueError):  # no axis, or not numeric
        return [
            draw_frontier(", ".join(filter(None, (f"Mean against p99{at}", _name(first)))), found)
            for first, found in points
        ]
    return draw_lines(axis, numbers, at)


def draw_lines(axis: str, points: Mapping[float, Results], at: str) -> list[Plot]:
    names = [*next(iter(points.values()))]
    plots = []
    for column in map(COLUMNS.__getitem__, TABLES["plots"]):
        rows: list[dict[str, object]] = [
            {"name": name, "x": number, "y": fmean(values), "low": min(values), "high": max(values)}
            for name in names
            for number, found in points.items()
            if (values := read_all(column, found.get(name, ())))
        ]
        spec = specify_lines(rows, names, axis, column.axis)
        described = "A line a strategy: the mean, in the band from the lowest to the highest."
        plots.append(Plot(f"{column.axis} over {axis}{at}", described, spec))
    return plots


def draw_frontier(title: str, found: Results) -> Plot:
    points = locate(found)
    least = (min((one[axis] for one in points.values()), default=0.0) for axis in (0, 1))
    corner = Point(*(FURTHEST * one for one in least))
    spec = specify_named_points(points, sorted(find_frontier(points)), "p99 JCT, s", "mean JCT, s", corner)
    return Plot(title, "A mark a strategy; those that no other beats are named, those far off left out.", spec)


def find_frontier(rows: Mapping[str, tuple[float, ...]]) -> set[str]:
    """Names that none beats in one figure without losing in another; less is better."""
    return {
        name
        for name, own in rows.items()
        if not any(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in rows.values())
    }
