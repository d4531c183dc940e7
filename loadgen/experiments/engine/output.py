"""Files for results, found to be writable before a long run and written after it."""

from __future__ import annotations

import sys
from pathlib import Path

from models.errors import UserError
from models.files import require_writable_file


def require_writable(path: Path | None) -> None:
    """Raises UserError when there is no way to write there; leaves no file."""
    if path is None:
        return
    try:
        require_writable_file(path)
    except OSError as error:
        raise _unwritable(path, error) from None


def write(path: Path | None, content: bytes) -> None:
    """Raises UserError when it fails; does nothing without a path."""
    if path is None:
        return
    try:
        path.write_bytes(content)
    except OSError as error:
        raise _unwritable(path, error) from None
    print(f"saved {path}", file=sys.stderr)


def _unwritable(path: Path, error: OSError) -> UserError:
    remedy = "name a file in it" if isinstance(error, IsADirectoryError) else "choose another"
    return UserError(f"{path} cannot be written: {error.strerror}; {remedy}")
