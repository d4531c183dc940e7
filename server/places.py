"""Where the server keeps what it learns, below the cache folder."""

from __future__ import annotations

from pathlib import Path


def journal_path(cache: Path) -> Path:
    """The journal, unless the user names another."""
    return cache / "journal" / "journal.sqlite3"
