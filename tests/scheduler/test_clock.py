"""The machine's own time."""

import asyncio

from scheduler.clock import MonotonicClock


async def test_waiting_ends_with_the_event_however_late_the_moment() -> None:
    clock, event = MonotonicClock(), asyncio.Event()
    asyncio.get_running_loop().call_soon(event.set)
    await clock.wait(event, clock.now() + 3600)
    await clock.wait(event, None)


async def test_waiting_ends_at_the_moment_when_nothing_happens() -> None:
    clock, event = MonotonicClock(), asyncio.Event()
    for delay in (0.01, 0.0, -5.0):
        until = clock.now() + delay
        await clock.wait(event, until)
        assert clock.now() > until - 1e-3 and not event.is_set()
