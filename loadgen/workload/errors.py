"""The error that reading a workload raises, with words for the user."""

from __future__ import annotations

from pathlib import Path


class WorkloadError(ValueError):
    """A workload cannot be made; the message names the file and line, or the flag, and the reason."""


def at(path: Path, line: int, reason: str) -> WorkloadError:
    """The error for one line of a file, counted from 1."""
    return WorkloadError(f"{path}, line {line}: {reason}")
