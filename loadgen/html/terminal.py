"""A page's table for a terminal."""

from __future__ import annotations

from rich.table import Table as TextTable

from loadgen.html.table import Table


def show_table(table: Table) -> TextTable:
    """A page's table for a terminal."""
    shown = TextTable(title=table.caption, title_justify="left")
    for place, head in enumerate(table.heads):
        shown.add_column(head, justify="right" if place else "left")
    for row in table.rows:
        shown.add_row(*(cell if isinstance(cell, str) else cell.text for cell in row))
    return shown
