"""Monotonic time in seconds."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

log = logging.getLogger(__name__)


class Clock(Protocol):
    def now(self) -> float: ...

    async def wait(self, event: asyncio.Event, until: float | None) -> None:
        """For the event, or the time `until`."""


class MonotonicClock:
    now = staticmethod(time.monotonic)

    async def wait(self, event: asyncio.Event, until: float | None) -> None:
        delay = None if until is None else max(0.0, until - self.now())
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await event.wait()


def earliest(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


async def watch_lag(observe: Callable[[float], object], interval: float) -> None:
    """Until cancelled: by how many seconds the event loop woke up late."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval
        await asyncio.sleep(interval)
        observe(max(0.0, loop.time() - due))


class WorkFailed(Exception):
    """A background task failed."""


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Inside the context; failures are logged and raise WorkFailed there."""
    owner, task, failed = asyncio.current_task(), asyncio.create_task(work, name=name), False
    assert owner is not None, "contexts are entered in tasks"

    def notice(task: asyncio.Task[None]) -> None:
        nonlocal failed
        if failed := task.cancelled() or task.exception() is not None:
            reason = None if task.cancelled() else task.exception()
            log.critical("the %s failed, which everything else relies on", name, exc_info=reason)
            owner.cancel()

    task.add_done_callback(notice)
    try:
        yield
    finally:
        task.remove_done_callback(notice)
        task.cancel()
        await asyncio.wait([task])
        if failed:
            owner.uncancel()
            raise WorkFailed(name)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the %s failed as it was stopped", name, exc_info=error)
