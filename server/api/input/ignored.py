"""Ignored parts of a body, named in a response header."""

import re
from collections.abc import Container
from contextvars import ContextVar

HEADER = "x-lengthwise-ignored"
MOST = 32  # that fit into the header

# of the running request; None for lines of a batch
IGNORED: ContextVar[list[str] | None] = ContextVar("ignored", default=None)


def ignore(path: str, kind: str) -> None:
    """Name the path, of the client's kind, as ignored."""
    names, name = IGNORED.get(), re.sub(r"[^\w.\[\]-]", "", f"{path}.{kind[:64]}", flags=re.ASCII)
    if names is not None and name not in names and len(names) < MOST:
        names.append(name)


def is_own(kind: str | None, own: Container[str | None], path: str) -> bool:
    """Whether what stands at a path is of these kinds; any other is named as ignored."""
    if kind not in own:
        ignore(path, kind or "")
    return kind in own
