"""Models by hub id, `organisation/name[@revision]`.

It owns the id's form and which files are fetched. Downloading, its own cache, HF_HUB_OFFLINE and HF_TOKEN are the
business of huggingface_hub.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from models.catalog.checkpoint import Admit, require_checkpoint
from models.catalog.disk_cache import require_space
from models.errors import CatalogError

ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?", re.ASCII)

WANTED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""Data only: formats that can run code (*.py, *.bin, *.pt) are not even downloaded."""


def is_id(name: str) -> bool:
    """Whether a name has the form of a hub id."""
    return ID.fullmatch(name) is not None


def fetch(name: str, admit: Admit) -> Path:
    """The folder of a model's snapshot, downloaded if need be; raises CatalogError, and what `admit` raises."""
    # Imported late: it takes a second, and only hub ids need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError, HFValidationError

    match = ID.fullmatch(name)
    if match is None:
        raise CatalogError(f"'{name}' is not a hub id: write organisation/name or organisation/name@revision")
    wanted: dict[str, Any] = {"revision": match["revision"], "allow_patterns": list(WANTED)}
    try:
        with suppress(DryRunError):  # the hub is out of reach: what is here will do, or the download tells
            _require_fit(match["repo"], wanted, admit)
        folder = Path(snapshot_download(match["repo"], **wanted))
    except (OSError, HFValidationError) as error:
        raise CatalogError(_why(name, error)) from error
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
