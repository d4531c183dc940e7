"""sd_notify(3) messages; a thread that ends the process when its event loop hangs; a watchdog that gives up hanging
executors.

Silence is counted in looks, not by the clock, which goes on while the process is stopped. An executor's beat changes
around every turn; one that holds requests and is silent for longer than `--stall-timeout` and ALLOWED_TURNS times its
slowest recent turn is given up. Code that holds the interpreter is left to the service manager's watchdog.
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
    """Datagrams to $NOTIFY_SOCKET, at intervals by $WATCHDOG_USEC."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Removes its variables, so that no child process sends messages."""
        self._address = environ.pop("NOTIFY_SOCKET", "")
        owner, microseconds = environ.pop("WATCHDOG_PID", ""), environ.pop("WATCHDOG_USEC", "")
        ours = microseconds.isdecimal() and owner in ("", str(os.getpid()))
        # seconds between messages; None: no watchdog
        self.watchdog_interval = int(microseconds) / 3_000_000 if ours else None

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def stopping(self, status: str) -> None:
        self._send(f"STOPPING=1\nSTATUS={status}")

    def well(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # an abstract socket
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.connect(address)
                channel.send(message.encode())
        except OSError as error:
            log.warning("the service manager cannot be told %r: %s", message.partition("\n")[0], error)


async def feed_watchdog(notifier: Notifier, healthy: Callable[[], bool]) -> None:
    """Until cancelled, while all is well."""
    if notifier.watchdog_interval is None:
        return
    while True:
        if healthy():
            notifier.well()
        await asyncio.sleep(notifier.watchdog_interval)


LOOP_INTERVAL = 1.0  # seconds between looks

LIMIT = 30.0  # seconds of silence after which a loop hangs


@asynccontextmanager
async def watch_loop(
    end: Callable[[], None], *, limit: float = LIMIT, interval: float = LOOP_INTERVAL
) -> AsyncIterator[None]:
    """Call `end` once, in another thread, when the running loop hangs."""
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

    def __init__(
        self, executors: Sequence[Executor], holders: Dispatcher, timeout: float, *, interval: float = INTERVAL
    ) -> None:
        self._watched = {executor.info.index: _Watched(executor) for executor in executors}
        self._holders = holders
        self._timeout = timeout
        self._dead = 0.0  # seconds without any executor that takes rows
        self._interval = interval

    def receive(self, report: Report) -> None:
        if isinstance(report, StepReport):
            watched = self._watched[report.executor]
            watched.slowest = max(report.seconds, watched.slowest * FADE)

    def responsive(self) -> bool:
        """Whether an executor works: silent for less than half of what is allowed."""
        left = [watched for watched in self._watched.values() if not watched.given_up]
        return not self._timeout or any(2 * watched.silence < self._allowed(watched) for watched in left)

    def look(self, passed: float) -> None:
        """`passed` seconds after the last look, give up hanging executors, and all if none has recovered for
        too long.
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
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            self.look(self._interval)
