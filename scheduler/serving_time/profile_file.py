"""Profiles: timings of a device and the fitted model, one JSON file for each set of conditions."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine.measure.timing import Timings
from models.errors import UserError, explain_unwritable_cache
from models.files import replace_file, require_writable_folder
from scheduler.serving_time.bilinear import Bilinear, FitErrors

VERSION = 2  # of the format and its meaning

FOLDER = "profiles"  # in the cache folder


@dataclass(frozen=True, slots=True)
class Conditions:
    """A profile holds under these alone."""

    model: str  # catalog name, or full path
    dtype: str
    quantization: str  # `none` for weights as they are
    device: str
    threads: int  # CPU threads of an executor; 0 on another device
    max_num_batched_tokens: int  # prompt tokens prefilled at a time


@dataclass(frozen=True, slots=True)
class Profile:
    conditions: Conditions
    measured_at: str  # ISO 8601
    program: str  # version of Lengthwise
    model: Bilinear
    errors: FitErrors
    timings: Timings
    version: int = VERSION


def digest(conditions: Conditions) -> str:
    return hashlib.sha256(msgspec.json.encode(conditions)).hexdigest()[:16]


def profile_path(cache: Path, conditions: Conditions, *, learned: bool = False) -> Path:
    name = re.sub(r"[^\w.-]", "_", Path(conditions.model).name)
    return cache / FOLDER / f"{name}-{conditions.dtype}-{digest(conditions)}{'-learned' if learned else ''}.json"


def write_profile(cache: Path, profile: Profile, *, learned: bool = False) -> Path:
    """Atomic. Returns the file; raises UserError."""
    path = profile_path(cache, profile.conditions, learned=learned)
    with explain_unwritable_cache(str(path)), replace_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(profile)))
    return path


def require_writable(cache: Path) -> None:
    """Raises UserError before time is spent on measuring."""
    with explain_unwritable_cache(str(cache / FOLDER)):
        require_writable_folder(cache / FOLDER)


def read_profile(path: Path) -> Profile:
    """Raises UserError for a missing or unusable file."""
    remedy = "measure it again with `lengthwise profile`"
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=dict[str, Any])["version"]
        if version != VERSION:
            raise UserError(f"{path} has version {version} and this program reads version {VERSION}: {remedy}")
        return msgspec.json.decode(content, type=Profile)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}; {remedy}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
        raise UserError(f"{path} is not a profile: {error}; {remedy}") from error


def load_profile(cache: Path, conditions: Conditions, *, learned: bool = False) -> Profile | None:
    """None when there is none; raises UserError for an unusable file."""
    path = profile_path(cache, conditions, learned=learned)
    if not path.exists():
        return None
    profile = read_profile(path)
    if profile.conditions != conditions:
        raise UserError(f"{path} is a profile of {profile.conditions}, not of {conditions}: remove it")
    return profile


def find_profile(cache: Path, model: str) -> Profile | None:
    """The newest of this model; raises UserError for an unusable file."""
    profiles = map(read_profile, _newest_first(cache))
    return next((one for one in profiles if Path(one.conditions.model).name == model), None)


def latest_profile(cache: Path) -> Path:
    """Raises UserError where there is none."""
    for path in _newest_first(cache):
        return path
    raise UserError("there is no profile of this machine yet: serve for a minute, or run `lengthwise profile`")


def _newest_first(cache: Path) -> list[Path]:
    return sorted((cache / FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
