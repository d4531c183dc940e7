"""Delays of the event loop, which add to all that runs on it. Knows no metric."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from scheduler.clock import background

INTERVAL = 0.25
"""Seconds between two looks."""


@asynccontextmanager
async def measure_lag(observe: Callable[[float], object]) -> AsyncIterator[None]:
    """Observe by how many seconds each look came too late, until the context is left."""
    async with background(_measure(observe), "loop lag"):
        yield


async def _measure(observe: Callable[[float], object]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + INTERVAL
        await asyncio.sleep(INTERVAL)
        observe(max(0.0, loop.time() - due))
