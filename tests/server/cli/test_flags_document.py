"""The page of all flags is what the program has."""

from __future__ import annotations

from pathlib import Path

from models.options import options_of
from server.cli.config import ServeConfig
from server.cli.flags_document import document

PAGE = Path(__file__).parents[3] / "docs" / "flags.md"


def test_the_page_is_the_programs() -> None:
    assert PAGE.read_text(encoding="utf-8") == document(), "run `make docs`"


def test_every_setting_has_a_line() -> None:
    lines = [line for line in document().splitlines() if line.startswith("| `")]
    assert len(lines) == len(options_of(ServeConfig))
    assert all(line.count(" | ") == 3 for line in lines)


def test_a_line_says_what_may_be_given() -> None:
    page = document()
    assert "| `--port` | `8000` | from 0 to 65535 |" in page
    assert "| `--enforce-eager` | `false` | also `--no-enforce-eager` |" in page
    assert "`baton-pd`" in page
    assert "| `--allowed-methods` | `*` | may be repeated |" in page
    assert "| `--seed` |  | from 0 to 9223372036854775807 |" in page
    assert "| `--no-journal` | `false` |  |" in page
