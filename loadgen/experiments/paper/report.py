"""Experiments for the eye: tables of what was measured in each run and of every row beside what is published; and a
page with each of a paper's figures that has numbers in the text, beside them, with a verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rich.console import Group, RenderableType
from rich.table import Table as TextTable
from rich.text import Text

from loadgen.console import Table
from loadgen.experiments.paper.plan import Experiment
from loadgen.experiments.paper.row import PERCENT, TIMES, Row
from loadgen.html.plot import SUMMARY, Plot, Spec, render_page

HEADS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "requests": ("requests", 0),
        "duration": ("duration s", 1),
        "throughput": ("req/s", 2),
        "answered_meanwhile": ("req/s meanwhile", 2),
        "first_quarter": ("req/s, first ¼", 2),
        "valid_tokens": ("valid tok/s", 0),
        "total_tokens": ("all tok/s", 0),
        "mean": ("mean RT s", 1),
        "tail": ("p95 RT s", 1),
        "batch_size": ("batch", 1),
        "pad": ("pad", 0),
        "invalid": ("invalid", 1),
        "slices": ("slices", 2),
        "few_slices": ("≤3 slices %", 1),
        "early_returns": ("early %", 1),
        "imbalance": ("CT STD s", 1),
    }
)
"""Figures of a trial: how their column is called, and its digits."""


def report(one: Experiment) -> RenderableType:
    """Both tables of an experiment, below its title."""
    title = f"{one.plan.title} (interrupted: as far as it came)" if one.interrupted else one.plan.title
    warning = [] if one.warning is None else [Text(one.warning, style="yellow")]
    head = (Text(title, style="bold"), Text(one.plan.setting, style="dim"), *warning)
    measured = [_measured(one)] if one.lines else []
    return Group(*head, *measured, _beside(one), Text())


def _measured(one: Experiment) -> TextTable:
    table = TextTable()
    table.add_column("strategy", no_wrap=True)
    table.add_column("at", no_wrap=True)
    names = ("requests", *one.plan.figures)
    for name in names:
        table.add_column(HEADS[name][0], justify="right")
    for line in one.lines:
        cells = (f"{getattr(line.trial, name):,.{HEADS[name][1]}f}" for name in names)
        table.add_row(line.strategy, line.point.label, *cells)
    return table


def _beside(one: Experiment) -> TextTable:
    table = TextTable()
    for head in ("", "measured", "published", "where"):
        table.add_column(head, justify="left", overflow="fold")
    for row in one.rows:
        table.add_row(row.what, row.measured, row.published, row.where)
    return table


AGREES, LESS, MORE, OPPOSITE, HOLDS, FAILS = "as published", "less", "more", "the opposite", "holds", "does not hold"

NEAR = 0.1
"""Share of a published figure by which a measured one may be off and still be called the same."""

NEUTRAL: Mapping[str, float] = {PERCENT: 0.0, TIMES: 1.0}
"""Gains by which nothing is won, by unit."""

READING = (
    "Bars: what the text of the paper says. Dots: what was measured, one at each point of a sweep. As published: some "
    f"dot lies within {NEAR:.0%} of the bar. The opposite: a gain that is none at any point."
)


@dataclass(frozen=True, slots=True)
class Numbers:
    """A row whose published figure is a number or a range of them."""

    what: str
    unit: str
    measured: Sequence[float]
    low: float
    high: float

    def judge(self) -> str:
        """The verdict."""
        margin = NEAR * max(abs(self.low), abs(self.high))
        if any(self.low - margin <= value <= self.high + margin for value in self.measured):
            return AGREES
        if self.unit in NEUTRAL and max(self.measured) <= NEUTRAL[self.unit] < self.low:
            return OPPOSITE
        return LESS if min(self.measured) < self.low else MORE


def read_numbers(row: Row) -> Numbers | None:
    """The numbers of a row; None where it has none that a paper tells."""
    measured, published = row.document.get("measured"), row.document.get("published")
    if not isinstance(measured, dict) or not isinstance(published, list):
        return None
    return Numbers(row.what, str(row.document["unit"]), [*measured.values()], *published)


def judge(row: Row) -> str | None:
    """The verdict on a row; None for one that was skipped or that no paper tells."""
    if (numbers := read_numbers(row)) is not None:
        return numbers.judge()
    holds = row.document.get("holds")
    return None if holds is None else HOLDS if holds else FAILS


def tell_verdict(rows: Sequence[Row]) -> str:
    """The verdicts on the rows of a figure, counted."""
    found = Counter(filter(None, map(judge, rows)))
    if len(rows) == 1 and found:
        return next(iter(found))
    told = ", ".join(f"{count} {verdict}" for verdict, count in found.most_common())
    return f"{told} of {len(rows)}" if told else "not measured"


def make_page(paper: str, done: Sequence[Experiment]) -> str:
    """The text of the HTML page."""
    plots = [plot for one in done for where, rows in _figures(one).items() for plot in _draw(one, where, rows)]
    rows = [row for one in done for row in one.rows if judge(row) is not None]
    warnings = dict.fromkeys(one.warning for one in done if one.warning)
    lines = [f"All together: {tell_verdict(rows)}.", READING, *warnings]
    tables = [_tabulate(one) for one in done]
    return render_page(SUMMARY, title=f"{paper}: measured beside published", lines=lines, plots=plots, tables=tables)


def _figures(one: Experiment) -> Mapping[str, Sequence[Row]]:
    """The rows by where the paper has them."""
    found: dict[str, list[Row]] = {}
    for row in one.rows:
        found.setdefault(row.where, []).append(row)
    return found


def _tabulate(one: Experiment) -> Table:
    heads = ("", "measured", "published", "where", "verdict")
    rows = ((row.what, row.measured, row.published, row.where, judge(row) or "") for row in one.rows)
    verdicts = (
        (f"{where}, all of it", "", "", "", tell_verdict(rows)) for where, rows in _figures(one).items() if where
    )
    return Table(f"{one.plan.title}. {one.plan.setting}", heads, (*rows, *verdicts))


def _draw(one: Experiment, where: str, rows: Sequence[Row]) -> list[Plot]:
    """A plot for each unit of a figure's numbers."""
    numbers = [found for row in rows if (found := read_numbers(row)) is not None]
    title = f"{one.plan.title}; {where}: {tell_verdict(rows)}"
    return [
        Plot(title, "The figures are in the table below.", _specify([one for one in numbers if one.unit == unit], unit))
        for unit in dict.fromkeys(one.unit for one in numbers)
    ]


def _specify(numbers: Sequence[Numbers], unit: str) -> Spec:
    """A line a row: its published range as a bar, its measured figures as dots."""
    published = [{"name": one.what, "low": one.low, "high": one.high} for one in numbers]
    measured = [{"name": one.what, "value": value} for one in numbers for value in one.measured]
    y: Spec = {"field": "name", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 0}}
    ends = [end for one in numbers for end in (one.high, *one.measured)]
    scale = {"domainMax": 1.05 * max(ends), "nice": True} if max(ends) > 0 else {}
    x: Spec = {"type": "quantitative", "title": unit or "figure", "scale": scale}
    bar: Spec = {"type": "bar", "height": 12, "color": "var(--edge)", "stroke": "var(--faint)", "minBandSize": 2}
    return {
        "width": 320,
        "height": 26 * len(numbers) + 40,
        "encoding": {"y": y},
        "layer": [
            {
                "data": {"values": published},
                "mark": bar,
                "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}},
            },
            {
                "data": {"values": measured},
                "mark": {"type": "point", "color": "var(--c0)"},
                "encoding": {"x": {**x, "field": "value"}},
            },
        ],
    }
