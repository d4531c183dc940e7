"""Messages to a service manager (sd_notify(3)): ready, stopping, still well; none where it did not ask for them.

A thread that ends the process when its event loop stands still: nothing on the loop could, and all wait for it.

Silence is counted in looks, not read off the clock, which goes on while the whole process is stopped. Code that holds
the interpreter itself keeps this thread out too; a service manager's watchdog ends that.

A watchdog that gives up executors which have work and do not go on with it.

It asks nothing of them, so one that is merely busy is left in peace. An executor's beat counts what its loop has done:
it changes before and after every turn. An executor that holds requests while its beat stays the same is silent; one
that is silent for too long stands still, and is given up.

Turns differ in length, so "too long" is the longer of `--stall-timeout` and ALLOWED_TURNS times the slowest turn of
late. Silence is counted in looks, not read off the clock, which goes on while the whole process is stopped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.messages import Report, StepReport
from scheduler.clock import background
from scheduler.dispatcher import Dispatcher

if TYPE_CHECKING:
    from engine.executor import Executor

log = logging.getLogger(__name__)


class Notifier:
    """Datagrams to $NOTIFY_SOCKET; $WATCHDOG_USEC says how often it must hear that all is well."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Takes its variables out of the environment, so that no child process speaks in our name."""
        self._address = environ.pop("NOTIFY_SOCKET", "")
        owner, microseconds = environ.pop("WATCHDOG_PID", ""), environ.pop("WATCHDOG_USEC", "")
        ours = microseconds.isdecimal() and owner in ("", str(os.getpid()))
        self.watchdog_interval = int(microseconds) / 3_000_000 if ours else None
        """Seconds between two signs; None where no watchdog waits."""

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def stopping(self, status: str) -> None:
        self._send(f"STOPPING=1\nSTATUS={status}")

    def well(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A name that begins with @ is one of the abstract namespace.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.connect(address)
                channel.send(message.encode())
        except OSError as error:
            log.warning("the service manager cannot be told %r: %s", message.partition("\n")[0], error)


async def feed_watchdog(notifier: Notifier, healthy: Callable[[], bool]) -> None:
    """Tell the watchdog that all is well, as long as it is, until cancelled."""
    if notifier.watchdog_interval is None:
        return
    while True:
        if healthy():
            notifier.well()
        await asyncio.sleep(notifier.watchdog_interval)


LOOP_INTERVAL = 1.0
"""Seconds between two looks, and two signs of life."""

LIMIT = 30.0
"""Seconds without a sign of life after which a loop stands still."""


@asynccontextmanager
async def watch_loop(
    end: Callable[[], None], *, limit: float = LIMIT, interval: float = LOOP_INTERVAL
) -> AsyncIterator[None]:
    """Call `end` once, in another thread, when the running loop stands still, until the context is left."""
    beaten, stopped = threading.Event(), threading.Event()

    async def beat() -> None:
        while True:
            beaten.set()
            await asyncio.sleep(interval)

    def watch() -> None:
        silent = 0
        while silent < round(limit / interval):
            if stopped.wait(interval):
                return
            silent = 0 if beaten.is_set() else silent + 1
            beaten.clear()
        end()

    thread = threading.Thread(target=watch, name="loop watchdog", daemon=True)
    thread.start()
    try:
        async with background(beat(), "signs of life"):
            yield
    finally:
        stopped.set()
        thread.join()


INTERVAL = 1.0
"""Seconds between two looks."""

ALLOWED_TURNS = 5.0
"""Turns as long as the slowest of late for which an executor may be silent."""

RECOVERY = 15.0
"""Seconds that executors have to prove themselves while none takes rows."""

FADE = 0.99
"""Part of the slowest turn's duration that is left at each further turn."""


@dataclass(slots=True)
class _Watched:
    executor: Executor
    beat: int = -1
    silence: float = 0.0
    """Seconds without a beat while it held requests."""
    slowest: float = 0.0
    """Seconds of its slowest turn of late."""
    given_up: bool = False


class Watchdog:
    """Event loop only. `timeout` is seconds, 0 never gives an executor up; `interval` is seconds between two looks."""

    def __init__(
        self, executors: Sequence[Executor], holders: Dispatcher, timeout: float, *, interval: float = INTERVAL
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
