"""Plots are static SVG that shows every name and figure, says what it shows, and takes its colours from the page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from loadgen.html.plot import Bar, Plot, Point, Series, specify_bars, specify_lines, specify_points, thin

POINTS = [Point(1, 10), Point(2, 50), Point(4, 100)]


def draw(spec: Mapping[str, object]) -> Element:
    return ElementTree.fromstring(Plot('a < b & "c"', "d > e", spec).draw())


def texts(root: Element) -> set[str | None]:
    return {one.text for one in root.iter("text")}


def strokes(root: Element, kind: str) -> list[Element]:
    """Drawn elements of a kind of mark, such as `mark-line`."""
    groups = (group for group in root.iter("g") if group.get("class", "").startswith(f"{kind} role-mark"))
    return [one for group in groups for one in group]


def test_a_plot_says_what_it_shows_and_refers_to_nothing() -> None:
    root = draw(specify_lines([Series("x < y & z", POINTS, 0)], "requests/s", "time (s)"))
    assert (root.tag, root.attrib["role"], root.attrib["aria-label"]) == ("svg", "img", 'a < b & "c"')
    assert root.findtext("desc") == "d > e"
    assert {"x < y & z", "requests/s", "time (s)"} <= texts(root)
    assert "http" not in ElementTree.tostring(root, encoding="unicode")


def test_every_colour_is_a_variable_of_the_page() -> None:
    series = [Series("a", POINTS, 0, [(1, 20), (40, 60), (90, 110)]), Series("b", POINTS, 7)]
    for spec in (
        specify_lines(series, "x", "y"),
        specify_points(series, "x", "y"),
        specify_bars([Bar("a", 0, 2, 1, 3)], "s"),
    ):
        drawn = draw(spec)
        used = {value for one in drawn.iter() for name in ("fill", "stroke") if (value := one.get(name))}
        assert used and all(colour in {"none", "transparent"} or colour.startswith("var(--") for colour in used)


def test_lines_with_ranges_have_marks_and_whiskers_beside_each_other() -> None:
    ranges = [(5, 20), (40, 60), (90, 110)]
    root = draw(specify_lines([Series("a", POINTS, 0, ranges), Series("b", POINTS, 1, ranges)], "x", "y"))
    assert len(strokes(root, "mark-line")) == 2
    assert len(strokes(root, "mark-symbol")) == len(strokes(root, "mark-rule")) == 2 * len(POINTS)
    begins = [re.findall(r"M([-\d.]+),", line.attrib["d"])[0] for line in strokes(root, "mark-line")]
    assert float(begins[0]) < float(begins[1])


def test_a_range_too_few_is_a_mistake() -> None:
    with pytest.raises(ValueError):
        specify_lines([Series("a", POINTS, 0, [(0, 1)])], "x", "y")


def test_bars_have_names_and_figures() -> None:
    root = draw(specify_bars([Bar("first", 0, 1234.5, 1000, 1400), Bar("second", 1, 0.5, 0.5, 0.5)], "time (s)"))
    assert {"first", "second", "1,234", "0.5", "time (s)"} <= texts(root)
    assert len(strokes(root, "mark-rect")) >= 2 and len(strokes(root, "mark-rule")) == 2


def test_an_empty_plot_is_still_one() -> None:
    assert strokes(draw(specify_lines([Series("none", [], 0)], "x", "y")), "mark-line") == []


def test_thinning_keeps_ends_peaks_and_order() -> None:
    points = [Point(x, 0.0) for x in range(10_000)]
    points[4321] = Point(4321, 9.0)
    points[4322] = Point(4322, -9.0)
    kept = thin(points, 100)
    assert len(kept) <= 100 and kept == sorted(kept)
    assert {points[0], points[-1], points[4321], points[4322]} <= set(kept)
    assert thin(points[:100], 100) == points[:100]
