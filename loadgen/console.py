"""Tables as plain data, shown on a terminal, and short numbers for figures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table as TextTable

FILE_WIDTH = 160
"""Columns for tables that go to a file or a pipe, which have no window to fit into."""

WIDEST = 10_000


class TableConsole(Console):
    """Standard output, where a table whose words do not fit into the window is wider than that."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print renderables; the terminal breaks lines that are too long for it."""
        wide = self.options.update(max_width=WIDEST)
        self.width = max(self.width, *(self.measure(one, options=wide).minimum for one in objects))
        super().print(*objects, **options)


def table_console() -> Console:
    """Standard output, as wide as the terminal, or as wide as tables need."""
    console = TableConsole()
    return console if console.is_terminal else TableConsole(width=FILE_WIDTH)


def format_number(value: float) -> str:
    """A figure as people write it: with three or four significant digits, and commas between thousands."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def tell_duration(seconds: float) -> str:
    """A sentence about how long a command takes, before it starts."""
    told = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"
    return f"It takes some {told} on one core; Ctrl-C leaves what was measured until then."


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell with more to it than its text."""

    text: str
    kind: str = ""
    """A class of the style sheet."""


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
