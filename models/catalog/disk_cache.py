"""The cache on disk, whose folders are complete or absent."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from models.errors import CatalogError, explain_unwritable_cache
from models.progress import say

MANIFEST = "manifest.json"
FORMAT = 2  # raise it to rebuild folders

Build = Callable[[Path, Path], None]  # (scratch, out): fills `out`


@dataclass(frozen=True, slots=True)
class Origin:
    source: str  # requirement, or path of a file
    sha256: str  # of the source


@dataclass(frozen=True, slots=True)
class CacheManifest:
    """`files`: relative path -> bytes."""

    format: int
    origin: Origin
    files: dict[str, int]

    @property
    def size(self) -> int:
        return sum(self.files.values())


def read_manifest(folder: Path) -> CacheManifest | None:
    """None unless all files are there in full length."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=CacheManifest)
        sizes = {name: (folder / name).stat().st_size for name in manifest.files}
        if manifest.format == FORMAT and sizes == manifest.files:
            return manifest
    return None


def find_whole(shelf: Path) -> Iterator[tuple[Path, CacheManifest]]:
    for folder in sorted(shelf.glob("[!.]*")):
        if (manifest := read_manifest(folder)) is not None:
            yield folder, manifest


def obtain(folder: Path, origin: Origin, needed: int, build: Build) -> Path:
    """Built atomically by one process, unless it is there, with `needed` bytes of disk. Raises CatalogError, and what
    `build` raises.
    """
    if not _has(folder, origin):
        with _lock(folder):
            # built meanwhile
            if not _has(folder, origin):
                _rebuild(folder, origin, needed, build)
    return folder


def remove(folder: Path) -> None:
    """Waits for builders. Raises CatalogError."""
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
    shutil.rmtree(work, ignore_errors=True)  # of a killed process
    require_space(folder.parent, needed, folder.name)
    try:
        (out := work / "out").mkdir(parents=True)
        build(work, out)
        files = sorted(path for path in out.rglob("*") if path.is_file())
        for path in files:
            path.chmod(0o644)  # a service may run as another user
        sizes = {path.relative_to(out).as_posix(): path.stat().st_size for path in files}
        (out / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(CacheManifest(FORMAT, origin, sizes))))
        out.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Raises CatalogError where it cannot be written."""
    with explain_unwritable_cache(f"to {folder.parent}", CatalogError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(f".{folder.name}.lock"))
        try:
            held = lock.acquire(timeout=0)
        except Timeout:
            say(f"waiting for another process that prepares {folder.name}")
            held = lock.acquire()
        with held:
            yield


def require_space(root: Path, needed: int, what: str, variable: str = "LENGTHWISE_CACHE") -> None:
    """Raises CatalogError."""
    free = shutil.disk_usage(next(folder for folder in (root, *root.parents) if folder.exists())).free
    if free < needed:
        raise CatalogError(
            f"not enough disk space: {what} needs {needed / 1e6:.0f} MB and {root} has {free / 1e6:.0f} MB; "
            f"free some space, or set {variable} to a folder on another disk"
        )
