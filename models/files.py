"""Atomic file replacement, and whether a place can be written."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Readers see the old or the new content; makes the folder. Raises OSError, and then the old content stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o644)  # a service may run as another user
            yield file
            file.flush()
            os.fsync(handle)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def is_disk_full(error: BaseException) -> bool:
    """No room on the disk, or beyond the user's quota."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def require_writable_folder(folder: Path) -> None:
    """Make the folder if need be. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def require_writable_file(path: Path) -> None:
    """Makes the folder, leaves no file. Raises OSError."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not path.exists():
        require_writable_folder(path.parent)
    elif not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
