"""Hub ids `organisation/name[@revision]`: huggingface_hub downloads to its own cache (HF_HUB_OFFLINE, HF_TOKEN)."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from models.catalog.checkpoint import Admit, require_checkpoint
from models.catalog.disk_cache import require_space
from models.errors import CatalogError

HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?", re.ASCII)

# data only: *.py, *.bin and *.pt can hold code
WANTED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")


def fetch_snapshot(hub: re.Match[str], admit: Admit) -> Path:
    """Downloaded if need be; raises CatalogError, and what `admit` raises."""
    # slow, and for hub ids only
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError, HFValidationError

    wanted: dict[str, Any] = {"revision": hub["revision"], "allow_patterns": list(WANTED)}
    try:
        with suppress(DryRunError):  # the hub is out of reach: use what is here, or let the download fail
            _require_fit(hub["repo"], wanted, admit)
        folder = Path(snapshot_download(hub["repo"], **wanted))
    except (OSError, HFValidationError) as error:
        raise CatalogError(_why(hub[0], error)) from error
    require_checkpoint(folder)
    return folder


def _require_fit(repo: str, wanted: dict[str, Any], admit: Admit) -> None:
    from huggingface_hub import constants, get_safetensors_metadata, snapshot_download
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    coming = [file for file in snapshot_download(repo, **wanted, dry_run=True) if file.will_download]
    if any(file.filename.endswith(".safetensors") for file in coming):
        require_space(Path(constants.HF_HUB_CACHE), sum(file.file_size or 0 for file in coming), repo, "HF_HOME")
        # weights in other files are counted once here
        with suppress(NotASafetensorsRepoError, SafetensorsParsingError):
            admit(sum(get_safetensors_metadata(repo, revision=wanted["revision"]).parameter_count.values()))


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
