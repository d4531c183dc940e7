"""What of a body is ignored, and named in a header of the answer; kept for each request, in its threads too."""

from __future__ import annotations

import re
from collections.abc import Container
from contextvars import ContextVar

HEADER = "x-lengthwise-ignored"
MOST = 32  # names that fit into the header

# the names for the request that the running task serves; None elsewhere, as for lines of a batch
IGNORED: ContextVar[list[str] | None] = ContextVar("ignored", default=None)


def ignore(path: str, kind: str) -> None:
    """Name what stands at a path of the body, of a kind that the client gave it, as ignored."""
    names, name = IGNORED.get(), re.sub(r"[^\w.\[\]-]", "", f"{path}.{kind[:64]}", flags=re.ASCII)
    if names is not None and name not in names and len(names) < MOST:
        names.append(name)


def is_own(kind: str | None, own: Container[str | None], path: str) -> bool:
    """Whether what stands at a path is of these kinds; any other is named as ignored."""
    if kind not in own:
        ignore(path, kind or "")
    return kind in own
