"""The folder of a comparison: report.html and report.json, and the logs of the servers that it started."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from loadgen.compare.document import Setting, document
from loadgen.compare.page import page
from loadgen.compare.record import Comparison

PAGE, DATA, LOGS = "report.html", "report.json", "logs"


class FolderError(Exception):
    """The folder cannot be used; the message names the remedy."""


def prepare(folder: Path) -> Path:
    """Make sure before a long run that it can be kept; returns the folder for logs. Raises FolderError."""
    if (folder / DATA).exists():
        raise FolderError(f"{folder / DATA} exists already: choose another folder with --output")
    with _told(folder):
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    return folder / LOGS


def save(folder: Path, comparison: Comparison, setting: Setting) -> None:
    """Write both files, each at once or not at all. Raises FolderError."""
    with _told(folder):
        _write(folder / DATA, orjson.dumps(document(comparison, setting), option=orjson.OPT_INDENT_2))
        _write(folder / PAGE, page(comparison, setting).encode())


def _write(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".part")
    draft.write_bytes(content)
    os.replace(draft, path)


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FolderError(f"{folder}: cannot be written: {error.strerror}; choose another with --output") from None
