"""Progress on standard error: bars, or lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import TaskID

REDRAW = 0.5  # seconds

LINE_INTERVAL = 10.0  # seconds


@dataclass(eq=False, kw_only=True)
class Bars:
    threaded: bool = False  # a thread draws; without one timings are undisturbed
    lines: bool = True  # without a terminal
    latest_only: bool = False  # one part at a time
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        # slow to import
        from rich import console, progress

        self._console = console.Console(stderr=True)
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[note]}", markup=False),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=self._console,
            auto_refresh=self.threaded,
            refresh_per_second=1 / REDRAW,
            disable=not self._console.is_terminal,
        )
        self.lines = self.lines and self._progress.disable
        self._interval = LINE_INTERVAL if self._progress.disable else inf if self.threaded else REDRAW
        self._told = self.clock()

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, line: str, style: str = "") -> None:
        self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    def begin(self, title: str, total: int | None = None) -> Bar:
        if self.lines:
            self.say(title)
        self._told = self.clock()
        for earlier in self._progress.task_ids if self.latest_only else ():
            self._progress.remove_task(earlier)
        return Bar(self, self._progress.add_task(title, total=total, note=""))

    def watch(self, title: str, total: int) -> Callable[..., None]:
        """Returns a callback for done and `note`."""
        return self.begin(title, total).show

    def advance(self, count: int = 1) -> None:
        self.update(self._progress.task_ids[-1], advance=count)

    def update(self, task: TaskID, **changes: Any) -> None:
        self._progress.update(task, **changes)
        now = self.clock()
        if now - self._told >= self._interval:
            self._told = now
            self._progress.refresh()
            if self.lines:
                part = next(one for one in self._progress.tasks if one.id == task)
                of = "" if part.total is None else f" of {part.total:.0f}"
                note = part.fields["note"] and f", {part.fields['note']}"
                self.say(f"{part.description}: {part.completed:.0f}{of}{note}")


@dataclass(frozen=True, slots=True)
class Bar:
    bars: Bars
    task: TaskID

    def advance(self, count: int = 1) -> None:
        self.bars.update(self.task, advance=count)

    def show(self, done: int, *, total: int | None = None, note: str = "") -> None:
        """`total` stays unless given."""
        self.bars.update(self.task, completed=done, total=total, note=note)


def say(line: str) -> None:
    print(line, file=sys.stderr)
