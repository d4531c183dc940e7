"""Plots are static SVG that shows every name and figure, says what it shows, and takes its colours from the page."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from loadgen.html.plot import Plot, Point, Series, specify_lines, specify_named_points

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
        specify_named_points({"a": Point(1, 2), "b": Point(2, 1)}, ["a"], "x", "y", Point(9, 9)),
    ):
        drawn = draw(spec)
        used = {value for one in drawn.iter() for name in ("fill", "stroke") if (value := one.get(name))}
        assert used and all(colour in {"none", "transparent"} or colour.startswith("var(--") for colour in used)


def test_lines_with_ranges_have_bands() -> None:
    ranges = [(5, 20), (40, 60), (90, 110)]
    root = draw(specify_lines([Series("a", POINTS, 0, ranges), Series("b", POINTS, 1, ranges)], "x", "y"))
    assert len(strokes(root, "mark-line")) == len(strokes(root, "mark-area")) == 2
    assert not strokes(draw(specify_lines([Series("a", POINTS, 0)], "x", "y")), "mark-area")


def test_a_range_too_few_is_a_mistake() -> None:
    with pytest.raises(ValueError):
        specify_lines([Series("a", POINTS, 0, [(0, 1)])], "x", "y")


def test_an_empty_plot_is_still_one() -> None:
    assert strokes(draw(specify_lines([Series("none", [], 0)], "x", "y")), "mark-line") == []
