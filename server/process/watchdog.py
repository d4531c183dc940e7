"""Gives up executors that are silent, with requests, for longer than `--stall-timeout` and ALLOWED_TURNS times their
slowest recent turn. Counted in looks, as the clock goes on while the process is stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.messages import Report, StepReport
from scheduler.dispatcher import Dispatcher

if TYPE_CHECKING:
    from engine.executor import Executor

log = logging.getLogger(__name__)


INTERVAL = 1.0  # seconds between looks

ALLOWED_TURNS = 5.0  # times the slowest recent turn that silence may last

RECOVERY = 15.0  # seconds for self-tests while no executor takes rows

FADE = 0.99  # factor of the slowest turn at each further turn


@dataclass(slots=True)
class _Watched:
    executor: Executor
    beat: int = -1
    silence: float = 0.0  # seconds without a beat while holding requests
    slowest: float = 0.0  # seconds of the slowest recent turn
    given_up: bool = False


class Watchdog:
    """Event loop only; `timeout` 0 gives nobody up."""

    def __init__(self, executors: Sequence[Executor], holders: Dispatcher, timeout: float) -> None:
        self._watched = {executor.info.index: _Watched(executor) for executor in executors}
        self._holders = holders
        self._timeout = timeout
        self._dead = 0.0  # seconds without any executor that takes rows

    def receive(self, report: Report) -> None:
        if isinstance(report, StepReport):
            watched = self._watched[report.executor]
            watched.slowest = max(report.seconds, watched.slowest * FADE)

    def responsive(self) -> bool:
        """Whether an executor is silent for less than half of what is allowed."""
        left = [watched for watched in self._watched.values() if not watched.given_up]
        return not self._timeout or any(2 * watched.silence < self._allowed(watched) for watched in left)

    def look(self, passed: float) -> None:
        """`passed` seconds after the last look; gives up all if none recovers."""
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
        while True:
            await asyncio.sleep(INTERVAL)
            self.look(INTERVAL)
