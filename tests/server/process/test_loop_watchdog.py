"""The thread that watches the event loop: it ends what stands still, and nothing else."""

from __future__ import annotations

import asyncio
import threading

from server.process.watchdog import LoopWatchdog


def test_a_loop_without_a_sign_of_life_is_ended_once() -> None:
    ended = threading.Semaphore(0)
    watchdog = LoopWatchdog(ended.release, limit=0.05, interval=0.01)
    watchdog.start()
    assert ended.acquire(timeout=20)
    watchdog.stop()
    assert not ended.acquire(blocking=False)


async def test_a_loop_that_runs_is_left_in_peace_however_busy() -> None:
    """Each callback takes longer than the time between two signs of life, and no more than the limit."""
    ended = threading.Event()
    watchdog = LoopWatchdog(ended.set, limit=5.0, interval=0.01)
    watchdog.start()
    beats = asyncio.create_task(watchdog.run())
    for _ in range(20):
        assert not ended.wait(0.03)  # blocks the loop
        await asyncio.sleep(0)
    beats.cancel()
    watchdog.stop()
    assert watchdog.beat > 5 and not ended.is_set()


def test_one_that_is_stopped_ends_nothing() -> None:
    ended = threading.Event()
    watchdog = LoopWatchdog(ended.set, limit=60.0, interval=30.0)
    watchdog.start()
    watchdog.stop()
    assert not ended.is_set()
