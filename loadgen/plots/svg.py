"""What charts are drawn with: a frame that says what it shows, words, paths, and the look of each name. Knows no axis.

Colours come from STYLE, which a page holds once: it has them for light and for dark. Names differ in colour, mark and
dash, so that they can also be told apart without colours; the colours are near those of Okabe and Ito, "Color
Universal Design" (2008), darkened or lightened until each stands out 3:1 from its ground.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement

WIDTH = 420

MARKS = (
    "M-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0 -7,0",
    "M-3.2,-3.2h6.4v6.4h-6.4z",
    "M0,-4.6L4.6,0L0,4.6L-4.6,0z",
    "M0,-4.4L4.2,3.2H-4.2z",
    "M0,4.4L4.2,-3.2H-4.2z",
    "M-1.4,-4.2h2.8v2.8h2.8v2.8h-2.8v2.8h-2.8v-2.8h-2.8v-2.8h2.8z",
)
LIGHT = ("#0072b2", "#c24e00", "#007a5a", "#a8477f", "#7d6300", "#3d3d3d")
DARK = ("#56b4e9", "#ff9248", "#2cc79a", "#e59fc6", "#e6d83a", "#d6d6d6")
DASHES = ("none", "7 3", "2 3", "9 3 2 3")


def _colours(values: Sequence[str]) -> str:
    return " ".join(f".chart .c{place} {{ --c: {value}; }}" for place, value in enumerate(values))


STYLE = f"""
.chart {{ --ink: #1b1b1b; --faint: #636363; --grid: #dedede; --ground: #ffffff;
  display: block; width: 100%; height: auto; }}
.chart text {{ fill: var(--ink); font: 12px system-ui, sans-serif; }}
.chart .heading {{ font-weight: 600; font-size: 13px; }}
.chart .tick {{ fill: var(--faint); font-size: 11px; }}
.chart .ground {{ fill: var(--ground); }}
.chart .grid {{ stroke: var(--grid); stroke-width: 1; }}
.chart .axis {{ stroke: var(--faint); stroke-width: 1; }}
.chart .line {{ stroke: var(--c); stroke-width: 2; fill: none; stroke-linejoin: round; }}
.chart .mark {{ fill: var(--c); }}
.chart .whisker {{ stroke: var(--c); stroke-width: 1.5; fill: none; }}
.chart .bar {{ fill: var(--c); fill-opacity: 0.35; stroke: var(--c); }}
{_colours(LIGHT)}
@media (prefers-color-scheme: dark) {{
.chart {{ --ink: #ececec; --faint: #a5a5a5; --grid: #3a3a3a; --ground: #141414; }}
{_colours(DARK)}
}}
"""
"""What the style sheet of a page with charts needs."""


def frame(title: str, description: str, height: float, key: str) -> Element:
    """An empty `svg` that says what it shows; `key` begins its ids, which a page has once each."""
    named = {"aria-labelledby": f"{key}-title {key}-desc", "role": "img"}
    root = Element("svg", {"viewBox": f"0 0 {WIDTH} {height:g}", "class": "chart", **named})
    SubElement(root, "title", {"id": f"{key}-title"}).text = title
    SubElement(root, "desc", {"id": f"{key}-desc"}).text = description
    return root


def text(parent: Element, x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> Element:
    """Words at a place."""
    attributes = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor} | ({"class": kind} if kind else {})
    words = SubElement(parent, "text", attributes)
    words.text = said
    return words


def path(parent: Element, kind: str, drawn: str, **attributes: str) -> Element:
    """A path of one of the kinds that STYLE knows."""
    return SubElement(parent, "path", {"class": kind, "d": drawn, **attributes})


def group(parent: Element, look: int) -> Element:
    """A group in whose colour everything in it is drawn."""
    return SubElement(parent, "g", {"class": f"c{look % len(LIGHT)}"})


def dash(look: int) -> str:
    """How the line of a look is interrupted."""
    return DASHES[look // len(LIGHT) % len(DASHES)]


def mark(look: int) -> str:
    """What a look marks its points with."""
    return MARKS[(look + look // len(LIGHT)) % len(MARKS)]
