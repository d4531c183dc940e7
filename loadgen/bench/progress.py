"""How a run is going, for the person who waits for it, on standard error: a bar on a terminal, elsewhere lines."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadgen.client.outcome import Outcome

LINE_INTERVAL = 10.0


class RunProgress:
    """Counts requests while it is entered; an Observer of a run."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._running = 0
        self._ended = 0
        self._troubled = 0  # failed, rejected or cancelled
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        counts = TextColumn("{task.fields[counts]}")
        # A slow rhythm: drawing takes the CPU that reading answers needs.
        self._bar = Progress(
            *columns, counts, console=self._console, disable=not self._console.is_terminal, refresh_per_second=2
        )
        self._task = self._bar.add_task(title, total=total, counts="")
        self._said = time.monotonic()

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def sent(self) -> None:
        self._running += 1
        self._bar.update(self._task, counts=self._counts())

    def ended(self, outcome: Outcome) -> None:
        self._running -= 1
        self._ended += 1
        self._troubled += not outcome.completed
        self._bar.update(self._task, completed=self._ended, counts=self._counts())
        if self._bar.disable and time.monotonic() - self._said >= LINE_INTERVAL:
            self._said = time.monotonic()
            self._console.print(f"{self._title}: {self._ended} of {self._total}, {self._counts()}", highlight=False)

    def _counts(self) -> str:
        troubled = f", {self._troubled} not completed" if self._troubled else ""
        return f"{self._running} running{troubled}"
