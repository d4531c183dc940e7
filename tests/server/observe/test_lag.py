"""That a blocked event loop is noticed."""

from __future__ import annotations

import asyncio
import time

from scheduler.clock import background
from server.observe.gauges import LAG_INTERVAL, measure_lag


async def test_what_blocks_the_event_loop_is_measured() -> None:
    seen: asyncio.Queue[float] = asyncio.Queue()
    async with asyncio.timeout(20), background(measure_lag(seen.put_nowait), "lag"):
        await asyncio.sleep(0)  # the first look begins
        time.sleep(LAG_INTERVAL + 0.2)
        assert await seen.get() >= 0.15
