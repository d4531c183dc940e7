"""Where the server keeps what it learns. Imports torch only to fetch a model."""

import re
from functools import partial
from pathlib import Path

from models.catalog.catalog import Catalog
from models.files import require_writable_file
from server.config import ServeConfig
from server.settings import ConfigError


def journal_path(cache: Path, named: Path | None = None) -> Path:
    return named or cache / "journal" / "journal.sqlite3"


def require_writable(journal: Path | None) -> None:
    """Raise ConfigError for a named journal that cannot be written."""
    if journal is None:
        return
    try:
        require_writable_file(journal)
    except OSError as error:
        message = f"--journal {journal} cannot be written: {error.strerror}; name another file, or give --no-journal"
        raise ConfigError(message) from None


def batches_path(cache: Path, model: str) -> Path:
    return cache / "batches" / _file_name(model)


def model_key(model: str) -> str:
    """In the journal, independent of API names."""
    return Path(model).name


def proxy_path(cache: Path, model: str) -> Path:
    """One for each model, as answers' lengths differ."""
    return cache / "proxies" / _file_name(model)


def forest_path(cache: Path, model: str) -> Path:
    return cache / "forests" / f"{_file_name(model)}.forest"


def _file_name(model: str) -> str:
    return re.sub(r"[^\w.-]", "_", Path(model).name)


def fetch_model(config: ServeConfig) -> Path:
    """Fetched or converted if need be. Raises CatalogError, and LoadError, before it begins, where weights exceed
    memory.
    """
    return Catalog().resolve(config.model, partial(_require_memory, config))


def _require_memory(config: ServeConfig, weights: int) -> None:
    from server.composition.devices import first_device, require_memory

    require_memory(config, weights, first_device(config))
