"""The cache on disk: folders that are whole or absent, whatever else works there and whatever interrupts.

It owns locking, publishing and the manifest by which a folder is known to be whole. It does not know what is in
a folder or where that comes from, nor where folders lie.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from models.errors import CatalogError
from models.progress import say

MANIFEST = "manifest.json"
FORMAT = 2
"""Raise it when folders are made differently, so that those of earlier versions are made anew."""

Build = Callable[[Path, Path], None]
"""Fills the second folder with the files of an entry; what it puts into the first is thrown away."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The source that a folder is made from."""

    source: str  # a requirement, or the path of a file
    sha256: str  # of that source


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record inside a folder; `files` maps relative paths to sizes in bytes."""

    format: int
    origin: Origin
    files: dict[str, int]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(self.files.values())


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder whose files are all there in full length, else None."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
        sizes = {name: (folder / name).stat().st_size for name in manifest.files}
        if manifest.format == FORMAT and sizes == manifest.files:
            return manifest
    return None


def find_whole(shelf: Path) -> Iterator[tuple[Path, Manifest]]:
    """The folders on a shelf that are whole, by name."""
    for folder in sorted(shelf.glob("[!.]*")):
        if (manifest := read_manifest(folder)) is not None:
            yield folder, manifest


def obtain(folder: Path, origin: Origin, needed: int, build: Build) -> Path:
    """The folder, built first unless it is there, whole and of this origin. It is built in a hidden one beside it, that
    is moved to its place in one step, by one process at a time.

    needed   bytes that building takes on disk at most
    Raises CatalogError when there is no space or the cache cannot be written, and whatever `build` raises.
    """
    if not _has(folder, origin):
        with _lock(folder):
            # Another process may have built it while this one waited.
            if not _has(folder, origin):
                _rebuild(folder, origin, needed, build)
    return folder


def remove(folder: Path) -> None:
    """Delete a folder, once no other process builds it; raises CatalogError."""
    with _lock(folder):
        shutil.rmtree(folder)


def _has(folder: Path, origin: Origin) -> bool:
    manifest = read_manifest(folder)
    return manifest is not None and manifest.origin.sha256 == origin.sha256


def _rebuild(folder: Path, origin: Origin, needed: int, build: Build) -> None:
    work = folder.with_name(f".{folder.name}.partial")
    if folder.exists():
        say(f"{folder} is damaged or out of date: it is made anew")
        shutil.rmtree(folder)
    shutil.rmtree(work, ignore_errors=True)  # left by a process that was killed
    require_space(folder.parent, needed, folder.name)
    try:
        (out := work / "out").mkdir(parents=True)
        build(work, out)
        _seal(out, origin)
        out.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let no other process change a folder meanwhile; raises CatalogError where it cannot be written."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(f".{folder.name}.lock"))
        try:
            held = lock.acquire(timeout=0)
        except Timeout:
            say(f"waiting for another process that prepares {folder.name}")
            held = lock.acquire()
        with held:
            yield
    except OSError as error:
        raise CatalogError(
            f"cannot write to {folder.parent}: {error.strerror or error}; "
            "free some space there or check its permissions, or set LENGTHWISE_CACHE to another folder"
        ) from error


def require_space(root: Path, needed: int, what: str, variable: str = "LENGTHWISE_CACHE") -> None:
    """Raise CatalogError unless the disk of a folder, which may not be there yet, has so many bytes left."""
    there = next(folder for folder in (root, *root.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise CatalogError(
            f"not enough disk space: {what} needs {needed / 1e6:.0f} MB and {root} has {free / 1e6:.0f} MB; "
            f"free some space, or set {variable} to a folder on another disk"
        )


def _seal(folder: Path, origin: Origin) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        path.chmod(0o644)  # some libraries write for the owner only; a service may run as another user
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    manifest = msgspec.json.encode(Manifest(FORMAT, origin, sizes))
    (folder / MANIFEST).write_bytes(msgspec.json.format(manifest))
