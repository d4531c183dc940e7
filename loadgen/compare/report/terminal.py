"""A comparison on a terminal: a table for each load, and the verdicts against the baseline."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.compare.plan import Point
from loadgen.compare.quantities import find_quantity
from loadgen.compare.record import Comparison
from loadgen.compare.report.notes import warm_up
from loadgen.compare.verdict import Spread, find_spread, judge_all
from loadgen.console import format_number

SHOWN = ("request_throughput", "mean_jct_ms", "p99_jct_ms", "mean_ttft_ms")


def make_summary(comparison: Comparison) -> RenderableType:
    """The figures that matter most; the report has the others."""
    tables = (_table(comparison, point) for point in comparison.plan.points)
    return Group(*tables, Text(warm_up(comparison.plan.num_warmups)), *_verdicts(comparison))


def _table(comparison: Comparison, point: Point) -> Table:
    quantities = [find_quantity(key) for key in SHOWN]
    table = Table("", *(one.axis for one in quantities), title=f"{point.label}: median (lowest to highest)")
    for contestant in comparison.plan.contestants:
        cells = (_show_spread(find_spread(comparison, contestant, point, one)) for one in quantities)
        table.add_row(Text(contestant.name), *cells)
    return table


def _show_spread(one: Spread | None) -> str:
    if one is None:
        return "-"
    return f"{format_number(one.median)} ({format_number(one.low)} to {format_number(one.high)})"


def _verdicts(comparison: Comparison) -> Iterator[Text]:
    for one in judge_all(comparison):
        if one.baseline == comparison.plan.baseline and one.quantity.key in SHOWN:
            yield Text(f"{one.contestant} against {one.baseline}, {one.point.label}, {one.quantity.short}: {one.text}")
