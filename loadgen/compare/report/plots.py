"""Which plots a comparison makes, each with the table behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import inf

from loadgen.bench.measures import find_percentile
from loadgen.columns import Column
from loadgen.compare.record import Comparison, Contestant, Point
from loadgen.compare.verdict import Row, list_rows
from loadgen.console import format_number
from loadgen.html import plot
from loadgen.html.plot import Bar, Plot, Series, Spec
from loadgen.html.table import Table

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
