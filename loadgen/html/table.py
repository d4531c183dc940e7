"""A table of a page, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell with more to it than its text."""

    text: str
    kind: str = ""
    """A class of the style sheet."""
    note: str = ""
    """A second, fainter line."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a caption; the first cell of each row is its heading."""

    caption: str
    heads: tuple[str, ...]
    """Above the columns; empty: none."""
    rows: tuple[tuple[str | Cell, ...], ...]
    kind: str = ""
    """A class of the style sheet."""
