"""Ends the process when its event loop hangs; code that holds the interpreter is left to the service manager."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from scheduler.clock import background

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
