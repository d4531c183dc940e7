"""Charts are valid XML, and their points lie where the axes say."""

from __future__ import annotations

import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from loadgen.plots.chart import LEFT, PLOT_HEIGHT, RIGHT, TOP, Chart, Line, Point, stairs, thinned
from loadgen.plots.svg import WIDTH

RISING = Line("a", [Point(0, 0), Point(5, 50), Point(10, 100)])


def of_kind(root: Element, tag: str, kind: str = "") -> list[Element]:
    """Elements of a tag, in any name space, and of a class."""
    return [one for one in root.iter() if one.tag.rpartition("}")[2] == tag and (not kind or one.get("class") == kind)]


def curves(root: Element) -> list[list[tuple[float, float]]]:
    """The points of every line but those of the legend, in pixels."""
    drawn = [one.attrib["d"] for one in of_kind(root, "path", "line") if "L" in one.attrib["d"]]
    return [[(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+),([-\d.]+)", path)] for path in drawn]


def test_points_lie_where_the_axes_say() -> None:
    root = Chart("t", "s", "MiB", [RISING]).element("key")
    right, bottom = WIDTH - RIGHT, TOP + PLOT_HEIGHT
    assert curves(root) == [[(LEFT, bottom), ((LEFT + right) / 2, (TOP + bottom) / 2), (right, TOP)]]


def test_a_chart_by_itself_is_whole_and_says_what_it_shows() -> None:
    lines = [Line("a < b & c", RISING.points), Line("d", [Point(0, 1), Point(1, 2)])]
    root = ElementTree.fromstring(Chart("x > y", "s", "n", lines).svg())
    texts = [one.text for one in of_kind(root, "text")]
    assert {"x > y", "s", "n", "a < b & c", "d"} <= set(texts)
    assert len(of_kind(root, "style")) == 1
    ids = [one.attrib["id"] for one in root.iter() if "id" in one.attrib]
    assert root.attrib["aria-labelledby"].split() == ids


def test_lines_are_told_apart_and_keep_the_look_that_they_are_given() -> None:
    root = Chart("t", "s", "n", [RISING, Line("b", RISING.points), Line("c", RISING.points, look=4)]).element("key")
    looks = [one.attrib["class"] for one in of_kind(root, "g") if of_kind(one, "title")]
    assert looks == ["c0", "c1", "c4"]


def test_an_empty_chart_is_still_one() -> None:
    assert curves(ElementTree.fromstring(Chart("t", "s", "n", [Line("none", [])]).svg())) == []


def test_whiskers_reach_from_the_lowest_to_the_highest() -> None:
    line = Line("a", [Point(10, 50)], ranges=[(25, 100)], joined=False, marked=True)
    (whisker,) = of_kind(Chart("t", "s", "n", [line]).element("key"), "path", "whisker")
    top, low = re.fullmatch(r"M[-\d.]+,([\d.]+)h6m-3,0V([\d.]+)m-3,0h6", whisker.attrib["d"]).groups()  # type: ignore[union-attr]
    assert (float(top), float(low)) == (TOP, TOP + PLOT_HEIGHT * 0.75)


def test_a_range_too_few_is_a_mistake() -> None:
    with pytest.raises(ValueError):
        Chart("t", "s", "n", [Line("a", RISING.points, ranges=[(0, 1)])]).element("key")


def test_thinning_keeps_ends_peaks_and_order() -> None:
    points = [Point(x, 0.0) for x in range(10_000)]
    points[4321] = Point(4321, 9.0)
    points[4322] = Point(4322, -9.0)
    kept = thinned(points, 100)
    assert len(kept) <= 100 and kept == sorted(kept)
    assert {points[0], points[-1], points[4321], points[4322]} <= set(kept)
    assert thinned(points[:100], 100) == points[:100]


def test_stairs_are_level_between_points() -> None:
    assert stairs([Point(0, 0), Point(2, 1), Point(3, 5)]) == [(0, 0), (2, 0), (2, 1), (3, 1), (3, 5)]
    assert stairs([]) == []
