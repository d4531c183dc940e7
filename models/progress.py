"""Progress of long work on standard error: bars on a terminal; elsewhere a line as each part begins, and some later."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import TaskID

REDRAW = 0.5
"""Seconds between two drawings: they take CPU time from the work itself."""

LINE_INTERVAL = 10.0
"""Seconds between two lines about a part that goes on where there is no terminal."""


class Bars:
    """The bars of some work, shown while it is entered.

    threaded      whether a thread draws, so that the time also moves while nothing is done; without one, nothing
                  runs beside work that is timed
    lines         whether lines are printed where there is no terminal
    in_bytes      whether parts are counted in bytes
    latest_only   whether a part disappears when the next begins
    """

    def __init__(
        self,
        *,
        threaded: bool = False,
        lines: bool = True,
        in_bytes: bool = False,
        latest_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Imported late: a start that shows no bar does without.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn() if in_bytes else MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            auto_refresh=threaded,
            refresh_per_second=1 / REDRAW,
            disable=not self._console.is_terminal,
        )
        self._threaded = threaded
        self._latest_only = latest_only
        self._lines = lines and not self._console.is_terminal
        self._clock = clock
        self._bars: list[Bar] = []
        self._drawn = self._said = clock()

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._draw()
        self._progress.stop()

    def say(self, line: str, style: str = "") -> None:
        """Print a line above the bars."""
        self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    def begin(self, title: str, total: int | None = None) -> Bar:
        """Show the bar of the next part, or print its title where there is no terminal."""
        if self._lines:
            self.say(title)
        self._said = self._clock()
        for earlier in list(self._bars) if self._latest_only else ():
            self.remove(earlier)
        bar = Bar(self, self._progress.add_task(title, total=total, note=""), title, total)
        self._bars.append(bar)
        self._draw()
        return bar

    def watch(self, title: str, total: int) -> Callable[[int], None]:
        """Begin a part; returns what to call with how much of it is done."""
        return self.begin(title, total).show

    def advance(self, count: int = 1) -> None:
        """Count so much more of the latest part as done."""
        if self._bars:
            self._bars[-1].advance(count)

    def remove(self, bar: Bar) -> None:
        """Show a part no longer."""
        self._bars.remove(bar)
        self._progress.remove_task(bar.task)

    def note_change(self, bar: Bar) -> None:
        """Draw a part that has changed, or print a line about it, if the last time is long enough ago."""
        now = self._clock()
        if self._progress.disable:
            if self._lines and now - self._said >= LINE_INTERVAL:
                self._said = now
                self.say(bar.describe())
        elif now - self._drawn >= REDRAW:
            self._drawn = now
            self._draw()

    def _draw(self) -> None:
        for bar in self._bars:
            self._progress.update(bar.task, description=bar.title, completed=bar.done, total=bar.total, note=bar.note)
        if not self._threaded:
            self._progress.refresh()


class Bar:
    """One part of some work: how much of it is done, of how much, and a note beside."""

    __slots__ = ("_bars", "done", "note", "task", "title", "total")

    def __init__(self, bars: Bars, task: TaskID, title: str, total: int | None) -> None:
        self._bars = bars
        self.task = task
        self.title = title
        self.total = total
        self.done = 0
        self.note = ""

    def advance(self, count: int = 1) -> None:
        """Count so much more as done."""
        self.show(self.done + count)

    def show(self, done: int, *, total: int | None = None, note: str | None = None) -> None:
        """Take over how much is done; a `total` and a `note` stay until others are given."""
        self.done = done
        self.total = self.total if total is None else total
        self.note = self.note if note is None else note
        self._bars.note_change(self)

    def rename(self, title: str) -> None:
        """Give the part another title."""
        self.title = title
        self._bars.note_change(self)

    def describe(self) -> str:
        """The part in a line of text."""
        of = "" if self.total is None else f" of {self.total}"
        return f"{self.title}: {self.done}{of}" + (f", {self.note}" if self.note else "")


class FetchProgress:
    """Fetching and converting of models: bars over bytes on a terminal, elsewhere one line a step."""

    def say(self, line: str) -> None:
        """Print a line: a step begins, or something unusual was met."""
        Bars().say(line)

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar over `total` bytes; call what it yields with each number of bytes done."""
        with Bars(in_bytes=True) as bars:
            yield bars.begin(title, total).advance
