"""The thread that watches the event loop: it ends what stands still, and nothing else."""

from __future__ import annotations

import asyncio
import threading

from server.process.watchdog import watch_loop


async def test_a_loop_without_a_sign_of_life_is_ended_once() -> None:
    ended = threading.Semaphore(0)
    async with watch_loop(ended.release, limit=0.05, interval=0.01):
        assert ended.acquire(timeout=20)  # blocks the loop
    assert not ended.acquire(blocking=False)


async def test_a_loop_that_runs_is_left_in_peace_however_busy() -> None:
    """Each callback takes longer than the time between two signs of life, and no more than the limit."""
    ended = threading.Event()
    async with watch_loop(ended.set, limit=5.0, interval=0.01):
        for _ in range(20):
            assert not ended.wait(0.03)  # blocks the loop
            await asyncio.sleep(0)
    assert not ended.is_set()


async def test_signs_of_life_are_counted_anew_after_each() -> None:
    """The loop is silent for longer than the limit in all, and never for as long at a time."""
    ended = threading.Event()
    async with watch_loop(ended.set, limit=0.5, interval=0.01):
        for _ in range(8):
            assert not ended.wait(0.1)  # blocks the loop
            await asyncio.sleep(0.02)


async def test_one_that_is_stopped_ends_nothing_and_does_not_wait_for_its_next_look() -> None:
    ended = threading.Event()
    async with asyncio.timeout(20), watch_loop(ended.set, limit=60.0, interval=30.0):
        pass
    assert not ended.is_set()
