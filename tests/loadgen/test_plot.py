"""Plots are static SVG that shows every name and figure, says what it shows, and takes its colours from the page."""

from collections.abc import Mapping
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from loadgen.plot import Plot, Point, specify_lines, specify_named_points


def rows(*names: str) -> list[dict[str, object]]:
    return [{"name": name, "x": x, "y": 20 * x, "low": 5 * x, "high": 40 * x} for name in names for x in (1, 2, 4)]


def draw(spec: Mapping[str, object]) -> Element:
    return ElementTree.fromstring(Plot('a < b & "c"', "d > e", spec).draw())


def texts(root: Element) -> set[str | None]:
    return {one.text for one in root.iter("text")}


def strokes(root: Element, kind: str) -> list[Element]:
    """Drawn elements of a kind of mark, such as `mark-line`."""
    groups = (group for group in root.iter("g") if group.get("class", "").startswith(f"{kind} role-mark"))
    return [one for group in groups for one in group]


def test_a_plot_says_what_it_shows_and_refers_to_nothing() -> None:
    root = draw(specify_lines(rows("x < y & z"), ["x < y & z"], "requests/s", "time (s)"))
    assert (root.tag, root.attrib["role"], root.attrib["aria-label"]) == ("svg", "img", 'a < b & "c"')
    assert root.findtext("desc") == "d > e"
    assert {"x < y & z", "requests/s", "time (s)"} <= texts(root)
    assert "http" not in ElementTree.tostring(root, encoding="unicode")


def test_every_colour_is_a_variable_of_the_page() -> None:
    names = [*"abcdefgh"]
    for spec in (
        specify_lines(rows(*names), names, "x", "y"),
        specify_named_points({"a": Point(1, 2), "b": Point(2, 1)}, ["a"], "x", "y", Point(9, 9)),
    ):
        used = {value for one in draw(spec).iter() for name in ("fill", "stroke") if (value := one.get(name))}
        assert used and all(colour in {"none", "transparent"} or colour.startswith("var(--") for colour in used)


def test_every_name_has_a_line_in_a_band() -> None:
    root = draw(specify_lines(rows("a", "b"), ["a", "b"], "x", "y"))
    assert len(strokes(root, "mark-line")) == len(strokes(root, "mark-area")) == 2


def test_an_empty_plot_is_still_one() -> None:
    assert strokes(draw(specify_lines([], ["none"], "x", "y")), "mark-line") == []
