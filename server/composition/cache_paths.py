"""Where the server keeps what it learns, below the cache folder."""

from __future__ import annotations

import re
from pathlib import Path

from models.files import require_writable_file
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
