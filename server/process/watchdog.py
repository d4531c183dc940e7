"""Whether executors that have work go on with it. It asks nothing of them, so one that is merely busy is left in peace.

An executor's beat counts what its loop has done: it changes before and after every turn. One that holds requests and
whose beat stays the same is silent; one that is silent for too long stands still, and is given up.

Turns take as long as they take, so "too long" is the longer of `--stall-timeout` and PATIENCE times the slowest turn of
late. Silence is counted in looks, not read off the clock: while the whole process was stopped nobody stood still.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from engine.messages import ExecutorInfo, Report, StepReport
from scheduler.clock import background

log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two looks."""

PATIENCE = 5.0

FADE = 0.99
"""What is left, at each further turn, of how long the slowest took."""


class Beating(Protocol):
    """What is watched of engine.executor.Executor."""

    @property
    def info(self) -> ExecutorInfo: ...
    @property
    def alive(self) -> bool: ...
    @property
    def beat(self) -> int: ...


class Books(Protocol):
    """What is needed of scheduler.dispatcher.Dispatcher."""

    def held_by(self, executor: int) -> int: ...
    def give_up(self, executor: int, error: str) -> None: ...


@dataclass(slots=True)
class _Watched:
    executor: Beating
    beat: int = -1
    silence: float = 0.0
    """Seconds without a beat while it held requests."""
    slowest: float = 0.0
    """Seconds of its slowest turn of late."""
    given_up: bool = False


class Watchdog:
    """Event loop only. `timeout` in seconds, 0 never gives an executor up; `interval` in seconds between two looks."""

    def __init__(
        self, executors: Sequence[Beating], books: Books, timeout: float, *, interval: float = INTERVAL
    ) -> None:
        self._watched = {executor.info.index: _Watched(executor) for executor in executors}
        self._books = books
        self._timeout = timeout
        self._interval = interval

    def reported(self, report: Report) -> None:
        """An executor has told how long a turn took."""
        if isinstance(report, StepReport):
            one = self._watched[report.executor]
            one.slowest = max(report.seconds, one.slowest * FADE)

    def responsive(self) -> bool:
        """Whether any executor goes on with its work: none that is left has been silent for half of what is allowed."""
        left = [one for one in self._watched.values() if not one.given_up]
        return not self._timeout or any(2 * one.silence < self._allowed(one) for one in left)

    def silence(self, executor: int) -> float:
        """Seconds for which an executor has held requests without a sign of life."""
        return self._watched[executor].silence

    def look(self, passed: float) -> None:
        """Look at each executor, `passed` seconds after the last time; give up those that stand still."""
        for index, one in self._watched.items():
            if one.given_up:
                continue
            still = self._books.held_by(index) > 0 and one.beat == one.executor.beat
            one.silence = one.silence + passed if still else 0.0
            one.beat = one.executor.beat
            if self._timeout and one.silence >= self._allowed(one):
                one.given_up = True
                self._books.give_up(index, f"it stands still: no sign of life for {one.silence:.0f} s")

    def _allowed(self, one: _Watched) -> float:
        return max(self._timeout, PATIENCE * one.slowest)

    async def keep(self) -> None:
        """Look at regular times, until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            self.look(self._interval)


@asynccontextmanager
async def kept(vigil: Watchdog) -> AsyncIterator[Watchdog]:
    """Keep a vigil meanwhile."""
    async with background(vigil.keep(), "vigil"):
        yield vigil
