"""How figures are written."""

from __future__ import annotations

import io

import pytest
from rich.table import Table

from loadgen.console import TableConsole, format_number


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (1234567, "1,234,567"),
        (12.345, "12.3"),
        (0.012345, "0.0123"),
        (100.0, "100"),
        (-2.5, "-2.5"),
        (120, "120"),
        (float("inf"), "inf"),
    ],
)
def test_figures_are_written_short(value: float, words: str) -> None:
    assert format_number(value) == words


def test_a_table_shows_its_figures_in_a_window_that_is_too_narrow_for_them() -> None:
    """The columns of strategies had no width: the table was names alone."""
    table = Table("", "baton-pd", "lengthwise")
    table.add_row("Output token throughput (tok/s)", "1,234", "5,678")
    shown = io.StringIO()
    TableConsole(file=shown, width=20).print(table)
    assert "baton-pd" in shown.getvalue() and "1,234" in shown.getvalue() and "5,678" in shown.getvalue()
