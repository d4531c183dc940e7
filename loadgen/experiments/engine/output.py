"""Files for results, found to be writable before a long run and written after it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from loadgen.experiments.engine.job import BenchError


def require_writable(path: Path | None) -> None:
    """Raises BenchError when there is no way to write there; leaves no file."""
    if path is None:
        return
    if path.is_dir():
        raise BenchError(f"{path} is a folder: name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BenchError(f"{path} cannot be written: permission denied; choose another")


def write(path: Path | None, content: bytes) -> None:
    """Raises BenchError when it fails; does nothing without a path."""
    if path is None:
        return
    try:
        path.write_bytes(content)
    except OSError as error:
        raise _unwritable(path, error) from None
    print(f"saved {path}", file=sys.stderr)


def _unwritable(path: Path, error: OSError) -> BenchError:
    return BenchError(f"{path} cannot be written: {error.strerror}; choose another")
