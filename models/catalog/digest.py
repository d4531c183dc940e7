"""SHA-256 of large files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from models.catalog.progress import Progress

CHUNK = 1 << 22
"""Bytes read at once: few enough calls to hash at full speed, small enough for a smooth bar."""


def sha256(path: Path, title: str, progress: Progress) -> str:
    """Lower-case hexadecimal SHA-256 of a file; raises OSError when it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb") as file, progress.bar(title, path.stat().st_size) as advance:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()
