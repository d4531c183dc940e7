"""A thread that ends the process when its event loop stands still: nothing on the loop could, and all wait for it.

Silence is counted in looks, not read off the clock, which goes on while the whole process is stopped. Code that holds
the interpreter itself keeps this thread out too; a service manager's watchdog ends that.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from scheduler.clock import background

INTERVAL = 1.0
"""Seconds between two looks, and two signs of life."""

LIMIT = 30.0
"""Seconds without a sign of life after which a loop stands still."""


class LoopWatchdog:
    """Looks at `beat` from a thread of its own, and calls `end` there, once."""

    def __init__(self, end: Callable[[], None], *, limit: float, interval: float) -> None:
        self.beat = 0
        """Changes as long as the loop runs."""
        self._end = end
        self._looks = round(limit / interval)
        self._interval = interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    async def run(self) -> None:
        """Give signs of life, until cancelled."""
        while True:
            self.beat += 1
            await asyncio.sleep(self._interval)

    def _watch(self) -> None:
        seen, silent = self.beat, 0
        while silent < self._looks:
            if self._stopped.wait(self._interval):
                return
            seen, silent = self.beat, silent + 1 if self.beat == seen else 0
        self._end()


@asynccontextmanager
async def watch_loop(end: Callable[[], None]) -> AsyncIterator[None]:
    """Call `end`, in another thread, when the running loop stands still, until the context is left."""
    watchdog = LoopWatchdog(end, limit=LIMIT, interval=INTERVAL)
    watchdog.start()
    try:
        async with background(watchdog.run(), "signs of life"):
            yield
    finally:
        watchdog.stop()
