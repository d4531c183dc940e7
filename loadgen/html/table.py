"""A table as plain data, for a page and for a terminal."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table as TextTable


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


def show_table(table: Table) -> TextTable:
    """A page's table for a terminal."""
    shown = TextTable(title=table.caption, title_justify="left")
    for place, head in enumerate(table.heads):
        shown.add_column(head, justify="right" if place else "left")
    for row in table.rows:
        shown.add_row(*(cell if isinstance(cell, str) else cell.text for cell in row))
    return shown
