"""A watchdog that gives up executors which have work and do not go on with it.

It asks nothing of them, so one that is merely busy is left in peace. An executor's beat counts what its loop has done:
it changes before and after every turn. An executor that holds requests while its beat stays the same is silent; one
that is silent for too long stands still, and is given up.

Turns differ in length, so "too long" is the longer of `--stall-timeout` and ALLOWED_TURNS times the slowest turn of
late. Silence is counted in looks, not read off the clock, which goes on while the whole process is stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.messages import ExecutorInfo, Report, StepReport

log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two looks."""

ALLOWED_TURNS = 5.0
"""Turns as long as the slowest of late for which an executor may be silent."""

RECOVERY = 15.0
"""Seconds that executors have to prove themselves while none takes rows."""

FADE = 0.99
"""Part of the slowest turn's duration that is left at each further turn."""


class Beating(Protocol):
    """The part of engine.executor.Executor that is watched."""

    @property
    def info(self) -> ExecutorInfo: ...
    @property
    def alive(self) -> bool: ...
    @property
    def beat(self) -> int: ...


class Holders(Protocol):
    """The part of scheduler.dispatcher.Dispatcher that knows which executor holds requests."""

    @property
    def alive(self) -> bool: ...
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
    """Event loop only. `timeout` is seconds, 0 never gives an executor up; `interval` is seconds between two looks."""

    def __init__(
        self, executors: Sequence[Beating], holders: Holders, timeout: float, *, interval: float = INTERVAL
    ) -> None:
        self._watched = {executor.info.index: _Watched(executor) for executor in executors}
        self._holders = holders
        self._timeout = timeout
        self._dead = 0.0  # seconds for which no executor has taken rows
        self._interval = interval

    def receive(self, report: Report) -> None:
        """Note how long an executor's turn took."""
        if isinstance(report, StepReport):
            watched = self._watched[report.executor]
            watched.slowest = max(report.seconds, watched.slowest * FADE)

    def responsive(self) -> bool:
        """Whether any executor goes on with its work: none that is left has been silent for half of what is allowed."""
        left = [watched for watched in self._watched.values() if not watched.given_up]
        return not self._timeout or any(2 * watched.silence < self._allowed(watched) for watched in left)

    def silence(self, executor: int) -> float:
        """Seconds for which an executor has held requests without a sign of life."""
        return self._watched[executor].silence

    def look(self, passed: float) -> None:
        """Look at each executor, `passed` seconds after the last time; give up those that stand still, and all where
        none has proved itself for too long.
        """
        self._dead = 0.0 if self._holders.alive else self._dead + passed
        for index, watched in self._watched.items():
            if watched.given_up:
                continue
            still = self._holders.held_by(index) > 0 and watched.beat == watched.executor.beat
            watched.silence = watched.silence + passed if still else 0.0
            watched.beat = watched.executor.beat
            if self._timeout and watched.silence >= self._allowed(watched):
                self._give_up(watched, f"it stands still: no sign of life for {watched.silence:.0f} s")
            elif self._dead >= RECOVERY:
                self._give_up(watched, f"its device has not proved itself for {self._dead:.0f} s, and no other serves")

    def _give_up(self, watched: _Watched, error: str) -> None:
        watched.given_up = True
        self._holders.give_up(watched.executor.info.index, error)

    def _allowed(self, watched: _Watched) -> float:
        return max(self._timeout, ALLOWED_TURNS * watched.slowest)

    async def run(self) -> None:
        """Look at regular times, until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            self.look(self._interval)
