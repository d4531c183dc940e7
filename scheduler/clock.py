"""Time as the scheduler sees it: seconds that never jump. Tests and simulations bring a clock of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol


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


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Run `work` as a task of this name until the context is left; then it is cancelled and waited for."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
