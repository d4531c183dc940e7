"""How a long run in this process is going, on standard error: a bar on a terminal, elsewhere a line for each part.

Drawn between turns, never by a thread of its own: that would take the core of what is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

REDRAW = 0.5
"""Seconds between two drawings."""


class Bars:
    """Counts what has been done of each part while it is entered; parts come one after another."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(
            *columns, console=self._console, auto_refresh=False, disable=not self._console.is_terminal
        )
        self._task: TaskID | None = None
        self._drawn = clock()

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, title: str, total: int | None = None) -> None:
        """The next part."""
        self._task = self._progress.add_task(title, total=total)
        self._progress.refresh()
        if not self._console.is_terminal:
            self._console.print(title, markup=False, highlight=False)

    def advance(self, count: int = 1) -> None:
        """So much more of the present part is done."""
        if self._task is not None:
            self._progress.advance(self._task, count)
            if self._clock() - self._drawn >= REDRAW:
                self._drawn = self._clock()
                self._progress.refresh()
