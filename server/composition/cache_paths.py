"""Where the server keeps what it learns, below the cache folder, and the served model there. Imports torch only for a
model that is to be fetched.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from models.catalog.catalog import Catalog
from models.files import require_writable_file
from server.cli.config import ServeConfig
from server.cli.settings import ConfigError


def journal_path(cache: Path, named: Path | None = None) -> Path:
    """The journal, which the user may have named."""
    return named or cache / "journal" / "journal.sqlite3"


def require_writable(journal: Path | None) -> None:
    """Raise ConfigError for a journal that the user named and that cannot be written, before anything is served."""
    if journal is None:
        return
    try:
        require_writable_file(journal)
    except OSError as error:
        message = f"--journal {journal} cannot be written: {error.strerror}; name another file, or give --no-journal"
        raise ConfigError(message) from None


def batches_path(cache: Path, model: str) -> Path:
    """Where the files and batches of a served model are."""
    return cache / "batches" / _file_name(model)


def model_key(model: str) -> str:
    """The name of a served model in the journal, whatever the API calls it."""
    return Path(model).name


def proxy_path(cache: Path, model: str) -> Path:
    """Where the proxy of a served model is, or would be: another model's answers have other lengths."""
    return cache / "proxies" / _file_name(model)


def forest_path(cache: Path, model: str) -> Path:
    """Where the forest of a served model is, or would be."""
    return cache / "forests" / f"{_file_name(model)}.forest"


def _file_name(model: str) -> str:
    """The name of a served model as one of a file."""
    return re.sub(r"[^\w.-]", "_", Path(model).name)


def fetch_model(config: ServeConfig) -> Path:
    """The folder of the model, fetched or converted if need be. Raises CatalogError, and, before that is begun,
    LoadError where the device has not the memory for the weights."""
    return Catalog().resolve(config.model, partial(_require_memory, config))


def _require_memory(config: ServeConfig, weights: int) -> None:
    from server.composition.devices import first_device, require_memory

    require_memory(config, weights, first_device(config))
