"""Bars with whiskers as SVG, one for each name: for comparisons at a single rate. They look as the line charts do."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement

from loadgen.plots.scale import Scale, linear, number
from loadgen.plots.svg import WIDTH, frame, group, path, text

LINE = 38
LEFT, RIGHT, TOP, BOTTOM = 14, 60, 6, 40
"""At the right there is room for the figure of the longest bar."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One name's figure, and between what it lies."""

    name: str
    look: int
    value: float
    low: float
    high: float


def bar_chart(title: str, description: str, label: str, bars: tuple[Bar, ...], key: str) -> Element:
    """An `svg` element; `label` says what the axis counts, `key` makes ids unique. Raises ValueError without bars."""
    if not bars:
        raise ValueError(f"{title}: a chart needs a bar")
    scale = linear([edge for bar in bars for edge in (bar.value, bar.low, bar.high)])
    bottom = TOP + LINE * len(bars)
    root = frame(title, description, bottom + BOTTOM, key)
    for tick in scale.ticks:
        path(root, "axis" if tick == 0 else "grid", f"M{_across(scale, tick):.1f},{TOP}V{bottom}")
        text(root, _across(scale, tick), bottom + 15, number(tick), "tick", "middle")
    text(root, (LEFT + WIDTH - RIGHT) / 2, bottom + 33, label, anchor="middle")
    for place, bar in enumerate(bars):
        _draw(root, bar, scale, TOP + LINE * place)
    return root


def _draw(root: Element, bar: Bar, scale: Scale, top: float) -> None:
    own = group(root, bar.look)
    text(root, _across(scale, 0) + 2, top + 13, bar.name)
    start, end = sorted((_across(scale, 0), _across(scale, bar.value)))
    place = {"x": f"{start:.1f}", "y": f"{top + 18:g}", "width": f"{end - start:.1f}", "height": "13"}
    drawn = SubElement(own, "rect", {"class": "bar", **place})
    between = f"{number(bar.low)} to {number(bar.high)}"
    SubElement(drawn, "title").text = f"{bar.name}: {number(bar.value)} ({between})"
    low, high = _across(scale, bar.low), _across(scale, bar.high)
    path(own, "whisker", f"M{low:.1f},{top + 20:g}v9m0,-4.5H{high:.1f}m0,-4.5v9")
    text(root, max(high, end) + 6, top + 29, number(bar.value))


def _across(scale: Scale, value: float) -> float:
    return LEFT + scale.share(value) * (WIDTH - LEFT - RIGHT)
