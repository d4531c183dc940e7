"""Which plots a comparison makes, each with the table behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from loadgen.bench.measures import find_percentile
from loadgen.compare.quantities import QUANTITIES, Quantity
from loadgen.compare.record import Comparison, Contestant, Point
from loadgen.compare.verdict import Spread, find_spread
from loadgen.console import format_number
from loadgen.html import plot
from loadgen.html.plot import Bar, Plot, Series, Spec
from loadgen.html.table import Table

CURVE_POINTS = 300
"""More on a curve are not seen."""
SCATTER_POINTS = 400
PERCENTS = (10, 25, 50, 75, 90, 95, 99, 100)

Found = Sequence[tuple[Contestant, Sequence[tuple[Point, Spread]]]]
"""A quantity of each contestant that has any, under each load."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """Loads that go into one plot, and what tells them apart."""

    points: tuple[Point, ...]
    label: str = ""
    of: Callable[[Point], float] | None = None
    """The load of a point, as the plot's axis has it; None where there is one load only."""
    logarithmic: bool = False
    note: str = ""
    """The words for what all its loads have in common, where there are plots of others too."""


def make_plots(comparison: Comparison) -> Iterator[Plot]:
    """All plots for which there are data, those of one quantity together."""
    axes = _arrange_axes(comparison.plan.points)
    for quantity in QUANTITIES:
        for axis in axes:
            yield from _plot_quantity(comparison, quantity, axis)
    for point in comparison.plan.points:
        yield from _plot_latencies(comparison, point)
    yield from _plot_predictions(comparison)


def _arrange_axes(points: Sequence[Point]) -> tuple[_Axis, ...]:
    """Rates side by side if there are several; else burstinesses; loads that stand alone get a plot of their own."""
    finite = [point for point in points if point.rate is not None and point.rate != float("inf")]
    rates, burstinesses = {point.rate for point in finite}, {point.burstiness for point in finite}
    if len(rates) > 1:
        groups = [tuple(group) for _, group in groupby(finite, key=lambda point: point.burstiness)]
        notes = [f"burstiness {group[0].burstiness:g}" for group in groups]
        pairs = zip(groups, notes, strict=True)
        axes = [_Axis(group, "requests/s", lambda point: point.rate or 0.0, note=note) for group, note in pairs]
    elif len(burstinesses) > 1 and float("inf") not in burstinesses:
        axes = [_Axis(tuple(finite), "burstiness", lambda point: point.burstiness, True, note=f"{finite[0].rate:g}/s")]
    else:
        axes = [_Axis((point,), note=point.label) for point in finite]
    axes += [_Axis((point,), note=point.label) for point in points if point not in finite]
    return tuple(axes) if len(axes) > 1 else (replace(axes[0], note=""),)


def _plot_quantity(comparison: Comparison, quantity: Quantity, axis: _Axis) -> Iterator[Plot]:
    everything = [
        (one, [(point, known) for point in axis.points if (known := find_spread(comparison, one, point, quantity))])
        for one in comparison.plan.contestants
    ]
    found = [(contestant, spreads) for contestant, spreads in everything if spreads]
    if not found:
        return
    title = f"{quantity.title}, {axis.note}" if axis.note else quantity.title
    rows = tuple(_write_row(contestant, point, one) for contestant, spreads in found for point, one in spreads)
    spec, described = _draw_lines(quantity, axis, found) if axis.of else _draw_bars(quantity, found)
    heads = ("contestant", "load", "median", "lowest", "highest", "rounds")
    yield Plot(title, described, spec, Table(title, heads, rows))


def _write_row(contestant: Contestant, point: Point, one: Spread) -> tuple[str, ...]:
    figures = (one.median, one.low, one.high)
    return (contestant.name, point.label, *map(format_number, figures), ", ".join(map(format_number, one.values)))


def _draw_lines(quantity: Quantity, axis: _Axis, found: Found) -> tuple[Spec, str]:
    """The plot of a quantity against the load, and its description."""
    assert axis.of is not None
    series = [
        Series(
            contestant.name,
            [plot.Point(axis.of(point), one.median) for point, one in spreads],
            contestant.look,
            ranges=[(one.low, one.high) for _, one in spreads],
        )
        for contestant, spreads in found
    ]
    told = f"{quantity.label} against {axis.label}: the median of the rounds, whiskers from the lowest to the highest. "
    figures = (
        f"{one.name}: " + ", ".join(f"{format_number(y)} at {format_number(x)}" for x, y in one.points) + "."
        for one in series
    )
    return plot.specify_lines(series, axis.label, quantity.axis, log_x=axis.logarithmic), told + " ".join(figures)


def _draw_bars(quantity: Quantity, found: Found) -> tuple[Spec, str]:
    """The plot of a quantity under one load, and its description."""
    bars = [Bar(one.name, one.look, known.median, known.low, known.high) for one, ((_, known), *_) in found]
    told = f"{quantity.label}: the median of the rounds, whiskers from the lowest to the highest. "
    described = told + " ".join(f"{bar.name}: {format_number(bar.value)}." for bar in bars)
    return plot.specify_bars(bars, quantity.axis), described


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
    pairs = {
        one: own
        for one in comparison.plan.contestants
        if (own := [pair for play in comparison.plays if play.contestant == one.name for pair in play.predictions])
    }
    if not pairs:
        return
    title = "Predicted against actual length"
    series = [Series(one.name, _sample(own), one.look) for one, own in pairs.items()]
    described = "A mark for every request: the output tokens that it had, and how many were predicted."
    spec = plot.specify_points(series, "actual (tokens)", "predicted (tokens)")
    rows = tuple(
        (
            one.name,
            str(len(own)),
            format_number(sum(abs(predicted - actual) for predicted, actual in own) / len(own)),
            format_number(sum(predicted - actual for predicted, actual in own) / len(own)),
        )
        for one, own in pairs.items()
    )
    heads = ("contestant", "requests", "mean absolute error (tokens)", "mean error (tokens)")
    yield Plot(title, described, spec, Table(title, heads, rows))


def _sample(pairs: Sequence[tuple[float, int]]) -> list[plot.Point]:
    """Every n-th pair, so that no more than SCATTER_POINTS are left."""
    step = -(-len(pairs) // SCATTER_POINTS)
    return [plot.Point(actual, predicted) for predicted, actual in pairs[::step]]
