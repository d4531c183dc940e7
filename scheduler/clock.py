"""Time as the scheduler sees it: seconds that never jump. Tests and simulations bring a clock of their own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol

log = logging.getLogger(__name__)


class Clock(Protocol):
    """A source of time and a way to wait on it."""

    def now(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""

    async def wait(self, event: asyncio.Event, until: float | None) -> None:
        """Return when the event is set, or at the time `until`, whichever is first."""


class MonotonicClock:
    """The machine's own time."""

    def now(self) -> float:
        return time.monotonic()

    async def wait(self, event: asyncio.Event, until: float | None) -> None:
        delay = None if until is None else max(0.0, until - self.now())
        try:
            async with asyncio.timeout(delay):
                await event.wait()
        except TimeoutError:
            return


def earliest(*moments: float | None) -> float | None:
    """The earliest of moments, each None for never."""
    return min((moment for moment in moments if moment is not None), default=None)


class WorkFailed(Exception):
    """Work in the background has ended with an error, so nothing that relies on it goes on."""


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Run `work` as a task of this name until the context is left; then it is cancelled and waited for.

    Should it fail before, that is logged, and the context is cancelled and raises WorkFailed.
    """
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
