"""Where tables are printed. Knows none of them."""

from __future__ import annotations

from rich.console import Console

FILE_WIDTH = 160
"""Columns for tables that go to a file or a pipe, where nobody's window limits them."""


def table_console() -> Console:
    """Standard output, as wide as the terminal, or as wide as tables need."""
    console = Console()
    return console if console.is_terminal else Console(width=FILE_WIDTH)
