"""How figures are written."""

from __future__ import annotations

import pytest

from loadgen.console import format_number


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
