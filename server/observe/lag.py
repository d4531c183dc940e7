"""How late the event loop wakes up: what everything that runs on it has to wait besides. Knows no metric."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from scheduler.clock import background

INTERVAL = 0.25
"""Seconds between two looks."""


@asynccontextmanager
async def measured_lag(observe: Callable[[float], object]) -> AsyncIterator[None]:
    """Tell how many seconds too late each look came, as long as the context is open."""
    async with background(_measure(observe), "loop lag"):
        yield


async def _measure(observe: Callable[[float], object]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + INTERVAL
        await asyncio.sleep(INTERVAL)
        observe(max(0.0, loop.time() - due))
