"""report.html: what `report.html.j2` shows, as tables, plots and sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import join

from loadgen.compare.machine import hide
from loadgen.compare.record import Comparison, Contestant, Point, Setting
from loadgen.compare.report.notes import describe_judging, find_warnings
from loadgen.compare.report.plots import make_plots
from loadgen.compare.verdict import COUNTS, Spread, Verdict, judge_all, list_rows
from loadgen.console import format_number
from loadgen.html.page import render_page
from loadgen.html.table import Cell, Table

TEMPLATE = Path(__file__).with_name("report.html.j2")
MARKS = {"better": "▲ ", "worse": "▼ "}


def make_page(comparison: Comparison, setting: Setting) -> str:
    """The text of report.html."""
    plan = comparison.plan
    *first, last = (one.name for one in plan.contestants)
    judged = judge_all(comparison)
    against = [one for one in judged if one.baseline == plan.baseline]
    return render_page(
        TEMPLATE,
        title=f"Lengthwise: {', '.join(first)} and {last} compared",
        plan=plan,
        setting=setting,
        rounds=_write_rounds(comparison),
        warnings=list(find_warnings(comparison)),
        verdicts=list(_tabulate_verdicts(plan.points, against)),
        other_verdicts=list(_tabulate_verdicts(plan.points, [one for one in judged if one not in against])),
        plots=list(make_plots(comparison)),
        figures=list(_tabulate_figures(comparison)),
        judging=describe_judging(comparison, judged),
        circumstances=list(_tabulate_setting(comparison, setting)),
    )


def _write_rounds(comparison: Comparison) -> str:
    """How many rounds were played to their end, by contestant where they differ."""
    planned = comparison.plan.rounds
    finished = {one.name: comparison.rounds_finished(one) for one in comparison.plan.contestants}
    if len(set(finished.values())) == 1:
        return f"{next(iter(finished.values()))} of {planned} rounds"
    told = ", ".join(f"{count} by {name}" for name, count in finished.items())
    return f"Of {planned} rounds were finished: {told};"


def _tabulate_verdicts(points: Sequence[Point], judged: Sequence[Verdict]) -> Iterator[Table]:
    """A table for every load and baseline: quantities below each other, contestants side by side."""
    for point in points:
        here = [one for one in judged if one.point == point]
        for baseline in dict.fromkeys(one.baseline for one in here):
            own = [one for one in here if one.baseline == baseline]
            names = tuple(dict.fromkeys(one.contestant for one in own))
            cells = {(one.quantity, one.contestant): _show_verdict(one) for one in own}
            rows = tuple(
                (quantity.title, *(cells.get((quantity, name), "-") for name in names))
                for quantity in dict.fromkeys(one.quantity for one in own)
            )
            yield Table(f"At {point.label}, against {baseline}", ("", *names), rows, "verdicts")


def _show_verdict(one: Verdict) -> Cell:
    mark = MARKS.get(one.outcome, "")
    return Cell(f"{mark}{one.text}", one.outcome if mark else "")


def _tabulate_figures(comparison: Comparison) -> Iterator[Table]:
    """A table for every load: quantities below each other, contestants side by side."""
    rows = list_rows(comparison)
    for point in comparison.plan.points:
        contestants = [one for one in comparison.plan.contestants if comparison.whole_plays(one, point)]
        cells = {(row.quantity, row.contestant): row.spread for row in rows if row.point == point}
        told: list[tuple[str | Cell, ...]] = [
            (quantity.label, *(_show_spread(cells.get((quantity, one))) for one in contestants))
            for quantity in dict.fromkeys(quantity for quantity, _ in cells)
        ]
        for count in COUNTS:
            totals = (format_number(sum(comparison.values(one, point, count))) for one in contestants)
            told.append((f"Requests {count}, all rounds", *totals))
        if contestants:
            yield Table(f"At {point.label}", ("", *(one.name for one in contestants)), tuple(told))


def _show_spread(one: Spread | None) -> Cell | str:
    if one is None:
        return "-"
    return Cell(format_number(one.median), note=f"{format_number(one.low)} to {format_number(one.high)}")


def _tabulate_setting(comparison: Comparison, setting: Setting) -> Iterator[Table]:
    """Where and how the comparison ran."""
    parts: Mapping[str, Mapping[str, str]] = {
        "Machine": setting.machine,
        "Versions": setting.versions,
        "Contestants": {one.name: _write_source(comparison, one) for one in comparison.plan.contestants},
        "Flags of the comparison": {name: json.dumps(value) for name, value in setting.flags.items()},
        "Environment": setting.environment,
    }
    for caption, pairs in parts.items():
        if pairs:
            yield Table(caption, (), tuple(pairs.items()), "setting")


def _write_source(comparison: Comparison, one: Contestant) -> str:
    if one.strategy:
        return hide(join(comparison.plan.command(one)))
    return f"{hide(one.url or '')} (was running before; not started by the comparison)"
