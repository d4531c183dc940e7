"""Result files: checked before a long run, written after it."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from models.errors import UserError
from models.files import read_toml, require_writable_file

PROGRAM = (sys.executable, "-P", "-m", "lengthwise")  # `-P`: not from the working directory


Json = dict[str, object]

# names, units, and tables of figures
FIGURES: Mapping[str, Any] = read_toml(__file__, "columns.toml")


@contextmanager
def explain_unwritable(path: Path, flag: str) -> Iterator[None]:
    """Raise UserError where writing fails; `flag` names another place."""
    try:
        yield
    except OSError as error:
        remedy = "name a file in it" if isinstance(error, IsADirectoryError) else f"choose another with {flag}"
        raise UserError(f"{path}: cannot be written: {error.strerror}; {remedy}") from None


def require_writable(path: Path | None, flag: str = "--save-result") -> None:
    """Raises UserError, for a missing folder too."""
    if path is not None:
        with explain_unwritable(path, flag):
            path.parent.stat()
            require_writable_file(path)


def save_json(path: Path | None, document: Mapping[str, object], flag: str = "--save-result") -> None:
    """If asked for. Raises UserError."""
    if path is not None:
        save(path, orjson.dumps(document, option=orjson.OPT_INDENT_2), flag)


def save(path: Path, content: bytes, flag: str) -> None:
    """Prints the name. Raises UserError."""
    with explain_unwritable(path, flag):
        path.write_bytes(content)
    print(f"saved {path}", file=sys.stderr)
