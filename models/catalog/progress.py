"""How long work is shown to the person who waits for it, always on standard error.

It owns bars and lines. It knows nothing of models or files.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from rich.console import Console

Advance = Callable[[int], None]


class Progress(Protocol):
    """What fetching and converting tell about themselves."""

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

    def __init__(self) -> None:
        self._console = Console(stderr=True)

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def bar(self, title: str, total: int) -> Iterator[Advance]:
        if not self._console.is_terminal:
            self.say(title)
            yield lambda _: None
            return
        # Imported late: a warm start shows no bar.
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Bars(*columns, console=self._console) as bars:
            task = bars.add_task(title, total=total)
            yield lambda done: bars.advance(task, done)

    @contextlib.contextmanager
    def library_bars(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if not self._console.is_terminal:
                stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            yield
