"""report.html: what `report.html.j2` shows, as tables, plots and sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from pathlib import Path
from shlex import join

from loadgen.bench.measures import find_percentile
from loadgen.columns import Column
from loadgen.compare.machine import hide
from loadgen.compare.record import Comparison, Contestant, Point, Setting
from loadgen.compare.report.document import describe_judging, find_warnings
from loadgen.compare.verdict import COUNTS, Row, Spread, Verdict, judge_all, list_rows
from loadgen.console import Cell, Table, format_number
from loadgen.html import plot
from loadgen.html.plot import Bar, Plot, Series, Spec, render_page

CURVE_POINTS = 300  # more on a curve are not seen
SCATTER_POINTS = 400
PERCENTS = (10, 25, 50, 75, 90, 95, 99, 100)
HEADS = ("contestant", "load", "median", "lowest", "highest", "rounds")


def make_plots(comparison: Comparison) -> Iterator[Plot]:
    """All plots for which there are data, those of one quantity together."""
    loads = list(_arrange_loads(comparison.plan.points))
    for quantity, rows in groupby(list_rows(comparison), key=lambda row: row.quantity):
        found = list(rows)
        for points, note in loads:
            if own := [row for row in found if row.point in points]:
                yield _plot_quantity(quantity, own, note if len(loads) > 1 else "")
    for point in comparison.plan.points:
        yield from _plot_latencies(comparison, point)
    yield from _plot_predictions(comparison)


def _arrange_loads(points: Sequence[Point]) -> Iterator[tuple[tuple[Point, ...], str]]:
    """Rates of one burstiness together, other loads by themselves; with words for what each plot's loads share."""
    steady = [point for point in points if point.rate not in (None, inf)]
    for burstiness, group in groupby(steady, key=lambda point: point.burstiness):
        rates = tuple(group)
        yield rates, f"burstiness {burstiness:g}" if len(rates) > 1 else rates[0].label
    yield from (((point,), point.label) for point in points if point not in steady)


def _plot_quantity(quantity: Column, rows: Sequence[Row], note: str) -> Plot:
    title = f"{quantity.title}, {note}" if note else quantity.title
    told = tuple(
        (
            one.contestant.name,
            one.point.label,
            *map(format_number, (one.spread.median, one.spread.low, one.spread.high)),
        )
        + (", ".join(map(format_number, one.spread.values)),)
        for one in rows
    )
    draw = _draw_lines if len({one.point for one in rows}) > 1 else _draw_bars
    described = f"{quantity.label}: the median of the rounds, whiskers from the lowest to the highest. " + " ".join(
        f"{one.contestant.name} at {one.point.label}: {format_number(one.spread.median)}." for one in rows
    )
    return Plot(title, described, draw(quantity, rows), Table(title, HEADS, told))


def _draw_lines(quantity: Column, rows: Sequence[Row]) -> Spec:
    series = []
    for contestant, group in groupby(rows, key=lambda one: one.contestant):
        own = list(group)
        points = [plot.Point(one.point.rate or 0.0, one.spread.median) for one in own]
        ranges = [(one.spread.low, one.spread.high) for one in own]
        series.append(Series(contestant.name, points, contestant.look, ranges))
    return plot.specify_lines(series, "requests/s", quantity.axis)


def _draw_bars(quantity: Column, rows: Sequence[Row]) -> Spec:
    bars = [
        Bar(one.contestant.name, one.contestant.look, one.spread.median, one.spread.low, one.spread.high)
        for one in rows
    ]
    return plot.specify_bars(bars, quantity.axis)


def _plot_latencies(comparison: Comparison, point: Point) -> Iterator[Plot]:
    """The share of requests that were done within a time, all rounds together."""
    samples = {
        one: times
        for one in comparison.plan.contestants
        if (times := sorted(time for play in comparison.whole_plays(one, point) for time in play.latencies))
    }
    if not samples:
        return
    title = "Distribution of job completion times"
    title += "" if len(comparison.plan.points) == 1 else f", {point.label}"
    series = [Series(one.name, _accumulate(times), one.look) for one, times in samples.items()]
    described = "The share of completed requests, in percent, that were done within a time; all rounds together."
    spec = plot.specify_lines(series, "job completion time (s)", "requests (%)", steps=True)
    heads = ("contestant", *(f"{percent} % within (s)" for percent in PERCENTS))
    rows = tuple(
        (one.name, *(format_number(find_percentile(times, percent)) for percent in PERCENTS))
        for one, times in samples.items()
    )
    yield Plot(title, described, spec, Table(title, heads, rows))


def _accumulate(times: Sequence[float]) -> list[plot.Point]:
    """Percent of requests done, by seconds."""
    steps = (plot.Point(time, 100 * place / len(times)) for place, time in enumerate(times, 1))
    return plot.thin([plot.Point(times[0], 0.0), *steps], CURVE_POINTS)


def _plot_predictions(comparison: Comparison) -> Iterator[Plot]:
    """Predicted against actual lengths, where servers tell predictions."""
    pairs: dict[Contestant, list[tuple[float, int]]] = {
        one: own
        for one in comparison.plan.contestants
        if (own := [pair for play in comparison.plays if play.contestant == one.name for pair in play.predictions])
    }
    if not pairs:
        return
    title = "Predicted against actual length"
    series = [
        Series(
            one.name, [plot.Point(actual, told) for told, actual in own[:: -(-len(own) // SCATTER_POINTS)]], one.look
        )
        for one, own in pairs.items()
    ]
    described = "A mark for every request: the output tokens that it had, and how many were predicted."
    spec = plot.specify_points(series, "actual (tokens)", "predicted (tokens)")
    errors = {one: [predicted - actual for predicted, actual in own] for one, own in pairs.items()}
    rows = tuple(
        (one.name, str(len(own)), format_number(sum(map(abs, own)) / len(own)), format_number(sum(own) / len(own)))
        for one, own in errors.items()
    )
    heads = ("contestant", "requests", "mean absolute error (tokens)", "mean error (tokens)")
    yield Plot(title, described, spec, Table(title, heads, rows))


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
    planned = comparison.plan.flags.rounds
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
