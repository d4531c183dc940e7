"""Profiles on disk: what steps take on a device and the model fitted to it, one JSON file for each set of conditions,
measured by `lengthwise profile` or learned while serving.

It owns the file format and the files' names; it knows neither how timings are measured nor where the cache folder is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.measure.timing import Timings
from models.errors import UserError
from models.files import replace_file, require_writable_folder
from scheduler.serving_time.bilinear import Bilinear, FitErrors

VERSION = 2
"""Raise it when the format, or the meaning of what is in it, changes."""

FOLDER = "profiles"
"""The folder of the profiles in the cache."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions under which steps were timed: a profile holds under these alone."""

    model: str
    """A name of the catalog, or the full path of a folder or file."""
    dtype: str
    quantization: str
    """`none` for weights as they are."""
    device: str
    """Name of the processor or device."""
    threads: int
    """CPU threads of one executor; 0 where another device computes."""
    max_num_batched_tokens: int
    """Prompt tokens that are prefilled at a time."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Timings on one device, and the model fitted to them."""

    conditions: Conditions
    measured_at: str
    """Date and time, ISO 8601."""
    program: str
    """The version of Lengthwise whose steps these are."""
    model: Bilinear
    errors: FitErrors
    timings: Timings
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class _Versioned:
    """The part of a profile that can be read whatever its version."""

    version: int


def digest(conditions: Conditions) -> str:
    """A short name for conditions, the same for the same ones."""
    return hashlib.sha256(msgspec.json.encode(conditions)).hexdigest()[:16]


def profile_path(cache: Path, conditions: Conditions, *, learned: bool = False) -> Path:
    """Path of the profile of these conditions, measured or learned, whether it exists or not."""
    name = re.sub(r"[^\w.-]", "_", Path(conditions.model).name)
    return cache / FOLDER / f"{name}-{conditions.dtype}-{digest(conditions)}{'-learned' if learned else ''}.json"


def write_profile(cache: Path, profile: Profile, *, learned: bool = False) -> Path:
    """Write a profile over an earlier one of the same kind and conditions, in one step: readers see either, whole.

    Returns the file; raises UserError when it cannot be written.
    """
    path = profile_path(cache, profile.conditions, learned=learned)
    with _explain_unwritable(path), replace_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(profile)))
    return path


def require_writable(cache: Path) -> None:
    """Make sure that profiles can be kept below a cache folder, before they are measured. Raises UserError."""
    with _explain_unwritable(cache / FOLDER):
        require_writable_folder(cache / FOLDER)


@contextmanager
def _explain_unwritable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; free some space there or check its permissions, "
            "or set LENGTHWISE_CACHE to another folder"
        ) from error


def read_profile(path: Path) -> Profile:
    """The profile in a file; raises UserError when there is none that this version can use."""
    remedy = "measure it again with `lengthwise profile`"
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Versioned).version
        if version != VERSION:
            raise UserError(f"{path} has version {version} and this program reads version {VERSION}: {remedy}")
        return msgspec.json.decode(content, type=Profile)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}; {remedy}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a profile: {error}; {remedy}") from error


def load_profile(cache: Path, conditions: Conditions, *, learned: bool = False) -> Profile | None:
    """The profile of these conditions, measured or learned; None when there is none yet.

    Raises UserError for a file that is there and cannot be used.
    """
    path = profile_path(cache, conditions, learned=learned)
    if not path.exists():
        return None
    profile = read_profile(path)
    if profile.conditions != conditions:
        raise UserError(f"{path} is a profile of {profile.conditions}, not of {conditions}: remove it")
    return profile


def latest_profile(cache: Path, model: str | None = None) -> Path:
    """The file of the newest profile, of a model that has this name or of any; raises UserError where there is none."""
    found = sorted((cache / FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found:
        if model is None or Path(read_profile(path).conditions.model).name == model:
            return path
    whose = "this machine" if model is None else f"{model} on this machine"
    raise UserError(f"there is no profile of {whose} yet: serve for a minute, or run `lengthwise profile`")
