"""Looks at many streams, on a loop whose other callbacks must not wait for all of them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack

import pytest

from scheduler.stream import AT_ONCE, Wakeups
from server.api.output.sse import look_often


async def test_it_looks_as_often_as_each_look_says_until_the_context_is_left() -> None:
    turns, looks, enough = Wakeups(), [0, 0], asyncio.Event()

    async def often() -> float | None:
        looks[0] += 1
        if looks[0] == 3:
            enough.set()
        return 0.0

    async def once() -> float | None:
        looks[1] += 1
        return None

    with look_often(once, 0.0, turns):
        with look_often(often, 0.0, turns):
            await enough.wait()
        count = looks[0]
        for _ in range(10):
            await asyncio.sleep(0)
        assert looks == [count, 1]


async def test_streams_whose_time_is_the_same_are_looked_at_a_few_at_a_time() -> None:
    """Four thousand waiting streams were told their places in one go, and all else waited for 0.1 s."""
    turns, looks, most, over = Wakeups(), 0, 0, asyncio.Event()

    async def look() -> float | None:
        nonlocal looks
        looks += 1
        if looks == 50:
            over.set()
        return None

    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(look_often(look, 0.0, turns))
        while not over.is_set():
            before = looks
            await asyncio.sleep(0)
            most = max(most, looks - before)
    assert 0 < most <= AT_ONCE


async def test_a_look_that_fails_is_the_last_of_its_stream_only(caplog: pytest.LogCaptureFixture) -> None:
    turns, looks, again = Wakeups(), [0, 0], asyncio.Event()

    async def gone() -> float | None:
        looks[0] += 1
        raise ConnectionResetError

    async def broken() -> float | None:
        looks[1] += 1
        raise ValueError("broken")

    async def well() -> float | None:
        if looks == [1, 1]:
            again.set()
        return 0.0

    with (
        caplog.at_level(logging.ERROR),
        look_often(gone, 0.0, turns),
        look_often(broken, 0.0, turns),
        look_often(well, 0.0, turns),
    ):
        async with asyncio.timeout(20):
            await again.wait()
    assert looks == [1, 1]
    assert caplog.messages == ["a stream could not be looked at"]
