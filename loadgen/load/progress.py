"""A run's requests as a bar: how many have ended, how many are running, how many did not complete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from loadgen.client.outcome import Outcome
from models.progress import Bar, Bars


class RequestBar:
    """An Observer of a run that shows its counts in a bar."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._running = 0
        self._troubled = 0  # failed, rejected or cancelled

    def sent(self) -> None:
        self._running += 1
        self._bar.show(self._bar.done, note=self._counts())

    def ended(self, outcome: Outcome) -> None:
        self._running -= 1
        self._troubled += not outcome.completed
        self._bar.show(self._bar.done + 1, note=self._counts())

    def _counts(self) -> str:
        troubled = f", {self._troubled} not completed" if self._troubled else ""
        return f"{self._running} running{troubled}"


@contextmanager
def show_run(title: str, total: int) -> Iterator[RequestBar]:
    """Show the bar of one run of `total` requests."""
    with Bars(threaded=True) as bars:
        yield RequestBar(bars.begin(title, total))
