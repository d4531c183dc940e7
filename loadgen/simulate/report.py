"""Simulations side by side, also at every combination of swept flags: a table for the eye, a page with plots, CSV for a
notebook, and plain data for a file. Simulates nothing.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import Any, TypeAlias

from loadgen.console import BRIEF, COLUMNS, Figures, Table, read_all, set_upright, tabulate_groups
from loadgen.plot import SUMMARY, Plot, Point, render_page, specify_lines, specify_named_points
from loadgen.result_file import Json
from loadgen.simulate.flags import SimulatedLoad, SimulatedMachine, SimulatedScheduling, SimulateFlags
from models.errors import UserError
from models.options import options_of, suggest

Results: TypeAlias = Mapping[str, Sequence[Figures]]
"""A strategy -> its figures, with each seed."""

NOISE = "noise"
"""An axis of its own: σ of `--prediction noisy:σ`, with 0 for an oracle."""

RANGE = re.compile(r"([-+.\de]+):([-+.\de]+):([-+.\de]+)")
MOST = 10_000
"""Values of an axis that are no slip of the hand."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A flag and its values."""

    name: str
    texts: tuple[str, ...]
    """The values as the user wrote them, ranges written out."""
    flag: str = ""
    """The name of the flag among the arguments."""
    values: tuple[object, ...] = ()

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """The values as numbers; None where some are none."""
        try:
            return tuple(map(float, self.texts))
        except ValueError:
            return None


def name_values(axes: Sequence[Axis], texts: Sequence[str]) -> str:
    """Axes and their values in words."""
    return ", ".join(f"{axis.name} {text}" for axis, text in zip(axes, texts, strict=True))


def read_axes(sweeps: Sequence[str]) -> tuple[Axis, ...]:
    """The axes of `--sweep` flags, in their order. Raises UserError."""
    axes = tuple(map(_read_axis, sweeps))
    if len({axis.flag for axis in axes}) < len(axes):
        raise UserError("--sweep: two of them vary the same flag: write its values in one, parted by commas")
    return axes


def list_points(flags: SimulateFlags, axes: Sequence[Axis]) -> Iterator[tuple[tuple[str, ...], SimulateFlags]]:
    """Every combination, as the texts and in the flags, the values of the last axis running fastest."""
    for chosen in itertools.product(*(zip(axis.texts, axis.values, strict=True) for axis in axes)):
        changes: dict[str, Any] = {axis.flag: value for axis, (_, value) in zip(axes, chosen, strict=True)}
        yield tuple(text for text, _ in chosen), replace(flags, **changes)


def _read_axis(text: str) -> Axis:
    name, _, rest = text.partition("=")
    groups = (SimulatedMachine, SimulatedScheduling, SimulatedLoad)
    known = {one.name: one for group in groups for one in options_of(group) if one.name != "strategies"}
    flag = name.removeprefix("--").replace("-", "_")
    option = known.get("prediction" if flag == NOISE else flag)
    if option is None or not rest:
        near = suggest(flag, [*known, NOISE])
        raise UserError(f"--sweep {text}: write NAME=1,2,3 or NAME=FIRST:LAST:STEP with a flag of simulate{near}")
    texts = tuple(one for part in rest.split(",") for one in _write_out(text, part))
    meant = texts
    if flag == NOISE:
        meant = tuple("oracle" if re.fullmatch(r"0*\.?0*", one) else f"noisy:{one}" for one in texts)
    try:
        values = tuple(map(option.from_text, meant))
    except ValueError as error:
        raise UserError(f"--sweep {text}: {error}") from None
    return Axis(flag, texts, option.name, values)


def _write_out(sweep: str, part: str) -> Iterator[str]:
    """The values of FIRST:LAST:STEP, the last one included; any other text is a value itself."""
    found = RANGE.fullmatch(part)
    if found is None:
        yield part
        return
    try:
        first, last, step = map(float, found.groups())
        count = int((last - first) / step + 1e-9) + 1
    except (ValueError, ZeroDivisionError):
        count = 0
    if not 0 < count <= MOST:
        raise UserError(f"--sweep {sweep}: {part} is no range FIRST:LAST:STEP of at most {MOST:,} numbers")
    yield from (f"{first + step * place:.10g}" for place in range(count))


SIDE_BY_SIDE = 6  # strategies that have a column each where all figures are shown; more have a line each
ALL = (
    *("completed", "failed", "duration", "request_throughput", "output_throughput"),
    *(f"{kind}_{name}_ms" for name in ("jct", "ttft") for kind in ("mean", "median", "p95", "p99", "p100")),
    *(f"{kind}_normalized_latency_s" for kind in ("mean", "median", "p95", "p99")),
    *("mean_slowdown", "p99_slowdown", "mean_batch_size", "pad_tokens", "invalid_tokens", "slices"),
    *("foretold_error", "foretold_inside", "completion_std"),
)
PAGE = ("mean_jct_ms", "p99_jct_ms", "p100_jct_ms", *BRIEF[2:])
FURTHEST = 3.0  # times the least mean or p99 that a plot of both shows
READING = (
    "Simulated, with the same requests for all strategies at a point and seed. Figures are means over the seeds, from "
    "the lowest to the highest. ▲: no other strategy has as low a mean and as low a p99 at that point."
)


@dataclass(frozen=True, slots=True)
class Ran:
    """One strategy's figures, at one combination of swept values and with one seed."""

    texts: tuple[str, ...]  # a value of each axis
    seed: int
    strategy: str
    figures: Json


@dataclass(frozen=True, slots=True)
class Swept:
    """All that was simulated, in the order of the points."""

    axes: tuple[Axis, ...]
    runs: list[Ran]

    def points(self) -> Iterator[tuple[tuple[str, ...], dict[str, list[Json]]]]:
        """The values of each point, and the figures of its seeds by strategy."""
        for texts, runs in groupby(self.runs, key=lambda one: one.texts):
            found: dict[str, list[Json]] = {}
            for one in runs:
                found.setdefault(one.strategy, []).append(one.figures)
            yield texts, found


def make_table(swept: Swept, *, everything: bool) -> Table:
    """The terminal's table: the figures that matter most, each beside that of the first strategy; or all of them."""
    failed = any(one.figures["failed"] for one in swept.runs)
    keys = ALL if everything else (*BRIEF, "failed") if failed else BRIEF
    groups = (
        {f"{name_values(swept.axes, texts)} {name}".lstrip(): one for name, one in found.items()}
        for texts, found in swept.points()
    )
    table = tabulate_groups("", groups, keys)
    return set_upright(table, keys) if everything and len(table.rows) <= SIDE_BY_SIDE else table


def write_csv(swept: Swept) -> str:
    """A line a point, seed and strategy: the axes' values, then all figures."""
    rows = [
        {axis.name: text for axis, text in zip(swept.axes, one.texts, strict=True)}
        | {"seed": one.seed, "strategy": one.strategy, **one.figures}
        for one in swept.runs
    ]
    file = io.StringIO()
    # Where no request was completed, there are fewer figures.
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def make_page(swept: Swept, caption: str) -> str:
    """The text of the HTML page; for each combination of the other axes, plots over the first axis and a table."""
    groups: dict[tuple[str, ...], dict[str, Results]] = {}
    for texts, found in swept.points():
        groups.setdefault(texts[1:], {})["".join(texts[:1])] = found
    plots: list[Plot] = []
    tables: list[Table] = []
    first, others = swept.axes[:1], swept.axes[1:]
    for texts, points in groups.items():
        name = name_values(others, texts)
        plots += _draw(first, points, f" at {name}" if name else "")
        marked = (
            {
                f"{name_values(first, [text] if first else [])} {one}".lstrip(): runs
                for one, runs in mark_best(found).items()
            }
            for text, found in points.items()
        )
        tables.append(tabulate_groups(name, marked, PAGE))
    lines = [caption, READING]
    return render_page(SUMMARY, title="Strategies in the simulator", lines=lines, plots=plots, tables=tables)


def locate(found: Results) -> dict[str, Point]:
    """The p99 and the mean of each strategy that completed any request."""
    columns = (COLUMNS["p99_jct_ms"], COLUMNS["mean_jct_ms"])
    read = {name: [read_all(column, one) for column in columns] for name, one in found.items()}
    return {name: Point(*map(fmean, values)) for name, values in read.items() if all(values)}


def mark_best(found: Results) -> Results:
    """The strategies, with a mark on the names of those that no other undercuts or equals."""
    points = locate(found)
    alone = {name for name in find_frontier(points) if list(points.values()).count(points[name]) == 1}
    return {f"▲ {name}" if name in alone else name: one for name, one in found.items()}


def _draw(first: Sequence[Axis], points: Mapping[str, Results], at: str) -> list[Plot]:
    """Figures over the first axis where its values are numbers, and else mean against p99 at each of them."""
    if first and first[0].numbers is not None:
        numbers = dict(zip(first[0].texts, first[0].numbers, strict=True))
        return draw_lines(first[0].name, {numbers[text]: found for text, found in points.items()}, at)
    return [
        draw_frontier(f"Mean against p99{at}{', ' if at and text else ''}{text}", found)
        for text, found in points.items()
    ]


def draw_lines(axis: str, points: Mapping[float, Results], at: str) -> list[Plot]:
    """Figures over the numbers of an axis: a line a name in the band of its results."""
    names = [*next(iter(points.values()))]
    plots = []
    for column in (COLUMNS[key] for key in PAGE[:2] + PAGE[4:5]):
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
    """Mean against p99: a mark a strategy, and the names of those that no other beats in both."""
    points = locate(found)
    least = (min((one[axis] for one in points.values()), default=0.0) for axis in (0, 1))
    corner = Point(*(FURTHEST * one for one in least))
    spec = specify_named_points(points, sorted(find_frontier(points)), "p99 JCT, s", "mean JCT, s", corner)
    return Plot(title, "A mark a strategy; those that no other beats are named, those far off left out.", spec)


def find_frontier(rows: Mapping[str, tuple[float, ...]]) -> set[str]:
    """The names whose figures, of which less is better, no other name undercuts in one without exceeding in another."""
    return {
        name
        for name, own in rows.items()
        if not any(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in rows.values())
    }
