"""The progress of fetching and converting models, and its display on standard error."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from models.progress import Bars

Advance = Callable[[int], None]


class Progress(Protocol):
    """Follows fetching and converting."""

    def say(self, line: str) -> None:
        """One line: a step begins, or something unusual was met."""
        ...

    def bar(self, title: str, total: int) -> AbstractContextManager[Advance]:
        """A bar over `total` bytes; call what it yields with each number of bytes done."""
        ...

    def library_bars(self) -> AbstractContextManager[None]:
        """Work inside a library that draws bars of its own on standard error."""
        ...


class ConsoleProgress:
    """Bars on a terminal; elsewhere one line a step, since a bar in a log file is noise."""

    def say(self, line: str) -> None:
        Bars().say(line)

    @contextlib.contextmanager
    def bar(self, title: str, total: int) -> Iterator[Advance]:
        with Bars(in_bytes=True) as bars:
            yield bars.begin(title, total).advance

    @contextlib.contextmanager
    def library_bars(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if not sys.stderr.isatty():
                stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            yield
