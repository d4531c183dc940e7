"""The report as one HTML page that needs nothing else: no script, no font, no picture from anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from shlex import join
from xml.etree.ElementTree import Element, SubElement, tostring

from loadgen.compare.document import Setting, all_verdicts
from loadgen.compare.notes import remarks, warnings
from loadgen.compare.panels import Plot, plots
from loadgen.compare.plan import Contestant, Point
from loadgen.compare.quantities import COUNTS, QUANTITIES
from loadgen.compare.record import Comparison
from loadgen.compare.secrets import hide
from loadgen.compare.verdict import Verdict, spread
from loadgen.plots.scale import number
from loadgen.plots.svg import STYLE as CHART_STYLE

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1b1b1b; --faint: #5c5c5c; --edge: #d5d5d5;
  --good: #00684a; --bad: #a63a00; --notice: #fff4dc; }
@media (prefers-color-scheme: dark) { :root { --ground: #141414; --ink: #ececec; --faint: #a8a8a8; --edge: #3d3d3d;
  --good: #4fd6aa; --bad: #ff9d5c; --notice: #3a2f14; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 76rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { margin-top: 2.5rem; font-size: 1.25rem; }
.faint { color: var(--faint); } .notice { padding: 0.1rem 1rem; background: var(--notice); border-radius: 6px; }
.notice h2 { margin-top: 0.8rem; } .notice li { white-space: pre-line; }
.plots { display: grid; gap: 2rem 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); }
figure { margin: 0; max-width: 36rem; min-width: 0; } figcaption { margin-bottom: 0.4rem; font-weight: 600; }
.wide { overflow-x: auto; overflow-wrap: normal; } .wide:focus-visible { outline: 2px solid; }
table { margin: 0 0 1.5rem; border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
caption { padding-bottom: 0.3rem; text-align: left; font-weight: 600; }
th, td { padding: 0.3rem 0.7rem 0.3rem 0; border-bottom: 1px solid var(--edge); text-align: left;
  vertical-align: top; }
.wide td, .wide thead th { min-width: 5.5rem; } .verdicts td { min-width: 11rem; }
.setting th { white-space: nowrap; } summary { cursor: pointer; color: var(--faint); font-size: 0.875rem; }
.better { color: var(--good); } .worse { color: var(--bad); } .range { display: block; color: var(--faint); }
"""


def page(comparison: Comparison, setting: Setting) -> str:
    """The text of report.html."""
    names = " and ".join(_listed([one.name for one in comparison.plan.contestants]))
    title = f"Lengthwise: {names} compared"
    root = Element("html", {"lang": "en"})
    head = SubElement(root, "head")
    SubElement(head, "meta", {"charset": "utf-8"})
    SubElement(head, "meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"})
    _add(head, "title", title)
    _add(head, "style", STYLE + CHART_STYLE)
    main = SubElement(SubElement(root, "body"), "main")
    _add(main, "h1", title)
    _opening(main, comparison, setting)
    judged = all_verdicts(comparison)
    _list(main, "Before you read on", warnings(comparison, judged), "notice")
    _verdicts(main, comparison, judged)
    _plots(main, list(plots(comparison)))
    _figures(main, comparison)
    _list(main, "How to read this", remarks(comparison, judged))
    _setting(main, comparison, setting)
    return "<!DOCTYPE html>\n" + tostring(root, encoding="unicode", method="html") + "\n"


def _listed(names: Sequence[str]) -> list[str]:
    """All but the last in one, so that "and" comes once."""
    return [", ".join(names[:-1]), names[-1]]


def _add(parent: Element, tag: str, said: str = "", kind: str = "") -> Element:
    child = SubElement(parent, tag, {"class": kind} if kind else {})
    child.text = said
    return child


def _opening(main: Element, comparison: Comparison, setting: Setting) -> None:
    plan = comparison.plan
    loads = ", ".join(point.label for point in plan.points)
    _add(
        main,
        "p",
        f"{setting.date}. {_rounds(comparison)} on {setting.machine['processor']} "
        f"({setting.machine['cores']}, GPU: {setting.machine['GPU']}). Load: {loads}; seed {plan.seed}.",
    )


def _rounds(comparison: Comparison) -> str:
    """How many rounds were played to their end, by contestant where they differ."""
    planned = comparison.plan.rounds
    finished = {one.name: comparison.rounds_finished(one) for one in comparison.plan.contestants}
    if len(set(finished.values())) == 1:
        return f"{next(iter(finished.values()))} of {planned} rounds"
    told = ", ".join(f"{count} by {name}" for name, count in finished.items())
    return f"Of {planned} rounds were finished: {told};"


def _list(main: Element, title: str, lines: Iterable[str], kind: str = "") -> None:
    """Nothing where there are no lines."""
    told = list(lines)
    if not told:
        return
    box = _add(main, "section", kind=kind)
    _add(box, "h2", title)
    points = _add(box, "ul")
    for line in told:
        _add(points, "li", line)


# Verdicts


def _verdicts(main: Element, comparison: Comparison, judged: Sequence[Verdict]) -> None:
    baseline = comparison.plan.baseline
    _add(main, "h2", f"Against {baseline}: which differences are real")
    against = [one for one in judged if one.baseline == baseline]
    if not against:
        _add(main, "p", "Nothing can be said: no two contestants have played the same load to its end.")
    for point in comparison.plan.points:
        _verdict_table(main, [one for one in against if one.point == point], f"At {point.label}, against {baseline}")
    rest = [one for one in judged if one.baseline != baseline]
    if rest:
        details = _add(main, "details")
        _add(details, "summary", "All other pairs")
        for point in comparison.plan.points:
            here = [one for one in rest if one.point == point]
            for base in dict.fromkeys(one.baseline for one in here):
                _verdict_table(
                    details, [one for one in here if one.baseline == base], f"At {point.label}, against {base}"
                )


def _verdict_table(parent: Element, judged: Sequence[Verdict], caption: str) -> None:
    if not judged:
        return
    names = list(dict.fromkeys(one.contestant for one in judged))
    by_cell = {(one.quantity.key, one.contestant): one for one in judged}
    body = _table(parent, caption, ("", *names), "verdicts")
    for quantity in dict.fromkeys(one.quantity for one in judged):
        row = _row(body, quantity.title)
        for name in names:
            verdict = by_cell.get((quantity.key, name))
            mark = {"better": "▲ ", "worse": "▼ "}.get(verdict.outcome, "") if verdict else ""
            _add(row, "td", f"{mark}{verdict.text}" if verdict else "-", verdict.outcome if mark and verdict else "")


# Figures


def _figures(main: Element, comparison: Comparison) -> None:
    _add(main, "h2", "Figures")
    _add(main, "p", "The median of the rounds; below it the lowest and the highest.", "faint")
    for point in comparison.plan.points:
        _figure_table(main, comparison, point)


def _figure_table(main: Element, comparison: Comparison, point: Point) -> None:
    contestants = [one for one in comparison.plan.contestants if comparison.whole_plays(one, point)]
    if not contestants:
        return
    body = _table(main, f"At {point.label}", ("", *(one.name for one in contestants)))
    for quantity in QUANTITIES:
        found = [spread(comparison, one, point, quantity) for one in contestants]
        if any(found):
            row = _row(body, quantity.label)
            for one in found:
                cell = _add(row, "td", number(one.median) if one else "-")
                if one:
                    _add(cell, "span", f"{number(one.low)} to {number(one.high)}", "range")
    for count in COUNTS:
        row = _row(body, f"Requests {count}, all rounds")
        for contestant in contestants:
            _add(row, "td", number(sum(comparison.values(contestant, point, count))))


def _plots(main: Element, drawn: Sequence[Plot]) -> None:
    if not drawn:
        return
    _add(main, "h2", "Plots")
    _add(main, "p", "The median of the rounds; whiskers go from the lowest round to the highest.", "faint")
    grid = _add(main, "div", kind="plots")
    for plot in drawn:
        figure = SubElement(grid, "figure")
        _add(figure, "figcaption", plot.title)
        figure.append(plot.chart)
        details = _add(figure, "details")
        _add(details, "summary", "The figures as a table")
        body = _table(details, plot.title, plot.heads)
        for first, *cells in plot.rows:
            row = _row(body, first)
            for cell in cells:
                _add(row, "td", cell)


# Where and how


def _setting(main: Element, comparison: Comparison, setting: Setting) -> None:
    _add(main, "h2", "Where and how")
    _pairs(main, "Machine", setting.machine)
    _pairs(main, "Versions", setting.versions)
    _pairs(main, "Contestants", {one.name: _source(comparison, one) for one in comparison.plan.contestants})
    _pairs(main, "Flags of the comparison", {name: json.dumps(value) for name, value in setting.flags.items()})
    if setting.environment:
        _pairs(main, "Environment", setting.environment)


def _source(comparison: Comparison, one: Contestant) -> str:
    if one.strategy:
        return hide(join(comparison.plan.command(one)))
    return f"{hide(one.url or '')} (ran before, started by somebody else)"


def _pairs(main: Element, caption: str, pairs: Mapping[str, str]) -> None:
    body = _table(main, caption, (), "setting")
    for name, value in pairs.items():
        _add(_row(body, name), "td", value)


def _table(parent: Element, caption: str, heads: Sequence[str], kind: str = "") -> Element:
    """Returns the body. A wide table scrolls in a box of its own, also by keyboard."""
    box = _add(parent, "div", kind="wide")
    box.attrib |= {"tabindex": "0", "role": "region", "aria-label": caption}
    table = _add(box, "table", kind=kind)
    _add(table, "caption", caption)
    if heads:
        top = SubElement(SubElement(table, "thead"), "tr")
        for head in heads:
            _add(top, "th", head).set("scope", "col")
    return SubElement(table, "tbody")


def _row(body: Element, head: str) -> Element:
    row = SubElement(body, "tr")
    _add(row, "th", head).set("scope", "row")
    return row
