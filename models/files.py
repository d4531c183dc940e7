"""Files that are replaced whole or not at all, and whether a place can be written."""

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
    """Write a file whose readers see the old content or the new one, whatever interrupts; makes its folder.

    Raises OSError, and then leaves what was there before.
    """
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
    """Whether an error says that there is no room left, on the disk or of what its user may have there."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def require_writable_folder(folder: Path) -> None:
    """Make a folder if need be, and raise OSError unless files can be made in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def require_writable_file(path: Path) -> None:
    """Raise OSError unless a file can be written at `path`; makes its folder, and leaves no file."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not path.exists():
        require_writable_folder(path.parent)
    elif not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
