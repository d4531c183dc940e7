"""Which plots a comparison makes: data in, titled charts with the table behind each out. Knows no page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from xml.etree.ElementTree import Element

from loadgen.compare.plan import Contestant, Point
from loadgen.compare.quantities import QUANTITIES, Quantity
from loadgen.compare.record import Comparison
from loadgen.compare.verdict import Spread, spread
from loadgen.plots.bars import Bar, bar_chart
from loadgen.plots.chart import Chart, Line, stairs, thinned
from loadgen.plots.chart import Point as Place
from loadgen.plots.scale import number

CURVE_POINTS = 300
"""More on a curve are not seen."""
SCATTER_POINTS = 400
QUARTILES = (10, 25, 50, 75, 90, 95, 99, 100)


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart, and its figures as a table for those who do not see it or want them exactly."""

    title: str
    chart: Element
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    """Loads that go into one chart, and what tells them apart."""

    points: tuple[Point, ...]
    label: str = ""
    of: Callable[[Point], float] | None = None
    """None: there is one load only."""
    logarithmic: bool = False
    note: str = ""
    """What all its loads have in common, where there are charts of others too."""


def plots(comparison: Comparison) -> Iterator[Plot]:
    """All plots for which there are data, those of one quantity together."""
    axes = _axes(comparison.plan.points)
    for quantity in QUANTITIES:
        for axis in axes:
            yield from _quantity_plot(comparison, quantity, axis, f"{quantity.key}-{axes.index(axis)}")
    for place, point in enumerate(comparison.plan.points):
        yield from _latency_curve(comparison, point, f"cdf-{place}")
    yield from _predictions(comparison)


def _axes(points: Sequence[Point]) -> tuple[_Axis, ...]:
    """Rates side by side if there are several; else burstinesses; loads that stand alone get a chart of their own."""
    finite = [point for point in points if point.rate is not None and point.rate != float("inf")]
    rates, burstinesses = {point.rate for point in finite}, {point.burstiness for point in finite}
    if len(rates) > 1:
        groups = [tuple(group) for _, group in groupby(finite, key=lambda point: point.burstiness)]
        axes = [_Axis(group, "requests/s", lambda point: point.rate or 0.0, note=_burst(group[0])) for group in groups]
    elif len(burstinesses) > 1 and float("inf") not in burstinesses:
        axes = [_Axis(tuple(finite), "burstiness", lambda point: point.burstiness, True, note=f"{finite[0].rate:g}/s")]
    else:
        axes = [_Axis((point,), note=point.label) for point in finite]
    axes += [_Axis((point,), note=point.label) for point in points if point not in finite]
    return tuple(axes) if len(axes) > 1 else (replace(axes[0], note=""),)


def _burst(point: Point) -> str:
    return f"burstiness {point.burstiness:g}"


def _quantity_plot(comparison: Comparison, quantity: Quantity, axis: _Axis, key: str) -> Iterator[Plot]:
    found = [
        (
            contestant,
            [(point, one) for point in axis.points if (one := spread(comparison, contestant, point, quantity))],
        )
        for contestant in comparison.plan.contestants
    ]
    found = [(contestant, spreads) for contestant, spreads in found if spreads]
    if not found:
        return
    title = f"{quantity.title}, {axis.note}" if axis.note else quantity.title
    rows = tuple(_row(contestant, point, one) for contestant, spreads in found for point, one in spreads)
    drawn = _lines(title, quantity, axis, found, key) if axis.of else _bars(title, quantity, found, key)
    yield Plot(title, drawn, ("contestant", "load", "median", "lowest", "highest", "rounds"), rows)


def _row(contestant: Contestant, point: Point, one: Spread) -> tuple[str, ...]:
    figures = (one.median, one.low, one.high)
    return (contestant.name, point.label, *map(number, figures), ", ".join(map(number, one.values)))


Found = Sequence[tuple[Contestant, Sequence[tuple[Point, Spread]]]]


def _lines(title: str, quantity: Quantity, axis: _Axis, found: Found, key: str) -> Element:
    assert axis.of is not None
    lines = [
        Line(
            contestant.name,
            [Place(axis.of(point), one.median) for point, one in spreads],
            ranges=[(one.low, one.high) for _, one in spreads],
            look=contestant.look,
            marked=True,
        )
        for contestant, spreads in found
    ]
    told = f"{quantity.label} against {axis.label}: the median of the rounds, whiskers from the lowest to the highest. "
    described = told + " ".join(
        f"{line.name}: " + ", ".join(f"{number(place.y)} at {number(place.x)}" for place in line.points) + "."
        for line in lines
    )
    return Chart(title, axis.label, quantity.axis, lines, described, axis.logarithmic).element(key)


def _bars(title: str, quantity: Quantity, found: Found, key: str) -> Element:
    bars = tuple(
        Bar(contestant.name, contestant.look, one.median, one.low, one.high)
        for contestant, ((_, one), *_) in ((contestant, spreads) for contestant, spreads in found)
    )
    told = f"{quantity.label}: the median of the rounds, whiskers from the lowest to the highest. "
    described = told + " ".join(f"{bar.name}: {number(bar.value)}." for bar in bars)
    return bar_chart(title, described, quantity.axis, bars, key)


# Distributions


def _latency_curve(comparison: Comparison, point: Point, key: str) -> Iterator[Plot]:
    """The share of requests that were done within a time, all rounds together."""
    samples = {
        contestant: sorted(time for play in comparison.whole_plays(contestant, point) for time in play.latencies)
        for contestant in comparison.plan.contestants
    }
    samples = {contestant: times for contestant, times in samples.items() if times}
    if not samples:
        return
    alone = len(comparison.plan.points) == 1
    title = "Distribution of job completion times" + ("" if alone else f", {point.label}")
    lines = [Line(contestant.name, _curve(times), look=contestant.look) for contestant, times in samples.items()]
    described = "The share of completed requests, in percent, that were done within a time; all rounds together."
    chart = Chart(title, "job completion time (s)", "requests (%)", lines, described).element(key)
    rows = tuple(
        (contestant.name, *(number(_at(times, percent)) for percent in QUARTILES))
        for contestant, times in samples.items()
    )
    heads = ("contestant", *(f"{percent} % within (s)" for percent in QUARTILES))
    yield Plot(title, chart, heads, rows)


def _curve(times: Sequence[float]) -> list[Place]:
    steps = [Place(times[0], 0.0), *(Place(time, 100 * (place + 1) / len(times)) for place, time in enumerate(times))]
    return stairs(thinned(steps, CURVE_POINTS))


def _at(times: Sequence[float], percent: int) -> float:
    """By nearest rank."""
    return times[-(-len(times) * percent // 100) - 1]


def _predictions(comparison: Comparison) -> Iterator[Plot]:
    """Predicted against actual lengths, where servers tell predictions."""
    pairs = {
        contestant: [
            pair for play in comparison.plays if play.contestant == contestant.name for pair in play.predictions
        ]
        for contestant in comparison.plan.contestants
    }
    pairs = {contestant: found for contestant, found in pairs.items() if found}
    if not pairs:
        return
    title = "Predicted against actual length"
    lines = [
        Line(contestant.name, _sample(found), look=contestant.look, joined=False, marked=True)
        for contestant, found in pairs.items()
    ]
    described = "A mark for every request: the output tokens that it had, and how many were predicted."
    chart = Chart(title, "actual (tokens)", "predicted (tokens)", lines, described).element("predictions")
    rows = tuple(
        (
            contestant.name,
            str(len(found)),
            number(sum(abs(predicted - actual) for predicted, actual in found) / len(found)),
            number(sum(predicted - actual for predicted, actual in found) / len(found)),
        )
        for contestant, found in pairs.items()
    )
    heads = ("contestant", "requests", "mean absolute error (tokens)", "mean error (tokens)")
    yield Plot(title, chart, heads, rows)


def _sample(pairs: Sequence[tuple[float, int]]) -> list[Place]:
    step = -(-len(pairs) // SCATTER_POINTS)
    return [Place(actual, predicted) for predicted, actual in pairs[::step]]
