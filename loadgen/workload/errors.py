"""The error that reading a workload raises, with words for the user."""

from __future__ import annotations

from pathlib import Path

from models.errors import UserError


def at(path: Path, line: int, reason: str) -> UserError:
    """The error for one line of a file, counted from 1."""
    return UserError(f"{path}, line {line}: {reason}")
