"""Experiments beside published figures, with verdicts; and a page of sweeps."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from rich.console import Group, RenderableType
from rich.table import Table as TextTable
from rich.text import Text

from loadgen.console import Table, show_table
from loadgen.experiments.paper.experiment import Experiment
from loadgen.experiments.paper.row import FIGURES, ReportRow
from loadgen.plot import SUMMARY, Plot, render_page, specify_lines


def report(one: Experiment) -> RenderableType:
    title = f"{one.title} (interrupted: as far as it came)" if one.interrupted else one.title
    warning = [Text(one.warning, style="yellow")] if one.warning else []
    head = (Text(title, style="bold"), Text(one.setting, style="dim"), *warning)
    measured = [show_table(_tabulate_runs(one))] if one.lines else []
    found = Counter(row.verdict for row in one.rows if row.verdict)
    told = ", ".join(f"{count} {verdict}" for verdict, count in found.most_common()) or "nothing to compare"
    return Group(*head, *measured, _tabulate_rows(one), Text(f"{told}; {len(one.rows)} rows"), Text())


def _tabulate_runs(one: Experiment) -> Table:
    names = ("requests", *one.figures)
    rows = (
        (line.strategy, line.point.label, *(f"{line.figures[name]:,.{FIGURES[name][1]}f}" for name in names))
        for line in one.lines
    )
    return Table("", ("strategy", "at", *(FIGURES[name][0] for name in names)), tuple(rows))


def _tabulate_rows(one: Experiment) -> TextTable:
    table = TextTable()
    for head in ("", "measured", "published", "where", "verdict"):
        table.add_column(head, overflow="fold")
    for row in one.rows:
        table.add_row(row.what, row.measured, row.published, row.where, row.verdict)
    return table


def make_page(title: str, seeds: Sequence[Mapping[str, Experiment]]) -> str:
    """The experiments with different seeds."""
    experiments = [[done[name] for done in seeds if name in done] for name in seeds[0]]
    plots = [plot for same in experiments for rows in _by_name(same).values() for plot in _draw(same, rows)]
    line = "Measured: the mean over the seeds, in a band from the lowest to the highest. Published: what the text says."
    tables = [_tabulate_seeds(same) for same in experiments]
    return render_page(SUMMARY, title=title, lines=[line], plots=plots, tables=tables)


def _by_name(same: Sequence[Experiment]) -> dict[str, list[ReportRow]]:
    names = dict.fromkeys(row.what for one in same for row in one.rows)
    return {name: [row for one in same for row in one.rows if row.what == name] for name in names}


def _draw(same: Sequence[Experiment], rows: Sequence[ReportRow]) -> Iterator[Plot]:
    labels = [[point.label for point in one.points] for one in same]  # a rate may depend on the seed
    found: list[tuple[float, list[float]]] = []
    for place, label in enumerate(labels[0]):
        measured = [row.document.get("measured") for row in rows]
        pairs = zip(measured, labels, strict=False)
        values = [one[names[place]] for one, names in pairs if isinstance(one, dict) and names[place] in one]
        if values and (number := re.search(r"\d+(\.\d+)?", label)):
            found.append((float(number[0]), values))
    published = rows[0].document.get("published")
    if len(found) < 2 or not isinstance(published, list):
        return
    low, high = published
    lines = [
        {"name": name, "x": x, "y": middle, "low": least, "high": most}
        for x, one in found
        for name, middle, least, most in (
            ("measured", fmean(one), min(one), max(one)),
            ("published", (low + high) / 2, low, high),
        )
    ]
    axis = re.sub(r"[\d.]+", "", labels[0][0], count=1).strip()
    names = ("measured", "published")
    spec = specify_lines(lines, names, "requests/s" if axis == "/s" else axis, str(rows[0].document["unit"]))
    yield Plot(f"{same[0].title}: {rows[0].what}", f"Published in {rows[0].where}.", spec)


def _tabulate_seeds(same: Sequence[Experiment]) -> Table:
    heads = ("", *(f"measured, run {number}" for number in range(1, len(same) + 1)), "published", "where")
    rows = (
        (name, *(row.measured for row in rows), rows[0].published, rows[0].where)
        for name, rows in _by_name(same).items()
    )
    return Table(f"{same[0].title}. {same[0].setting}", heads, tuple(rows))
