"""One clock for many streams, on a loop whose other callbacks must not wait for all of them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack

import pytest

from server.api.output import sse as ticker_module
from server.api.output.sse import Ticker


async def test_it_looks_as_often_as_each_look_says_until_the_context_is_left() -> None:
    ticker, looks, enough = Ticker(), [0, 0], asyncio.Event()

    async def often() -> float | None:
        looks[0] += 1
        if looks[0] == 3:
            enough.set()
        return 0.0

    async def once() -> float | None:
        looks[1] += 1
        return None

    with ticker.follow(once, 0.0):
        with ticker.follow(often, 0.0):
            await enough.wait()
        count = looks[0]
        for _ in range(10):
            await asyncio.sleep(0)
        assert looks == [count, 1]


async def test_an_earlier_look_does_not_wait_for_a_later_one() -> None:
    ticker, looked = Ticker(), asyncio.Event()

    async def late() -> float | None:
        raise AssertionError

    async def early() -> float | None:
        looked.set()
        return None

    with ticker.follow(late, 1000.0):
        await asyncio.sleep(0)  # it rests until then
        with ticker.follow(early, 0.0):
            async with asyncio.timeout(20):
                await looked.wait()


async def test_streams_whose_time_is_the_same_are_looked_at_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four thousand waiting streams were told their places in one go, and all else waited for 0.1 s."""
    monkeypatch.setattr(ticker_module, "BUDGET", 0.0)
    ticker, looks, turns, over = Ticker(), 0, 0, asyncio.Event()

    async def look() -> float | None:
        nonlocal looks
        looks += 1
        if looks == 50:
            over.set()
        return None

    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(ticker.follow(look, 0.0))
        while not over.is_set():
            turns += 1
            await asyncio.sleep(0)
    assert turns >= 40


async def test_a_look_that_fails_is_the_last_of_its_stream_only(caplog: pytest.LogCaptureFixture) -> None:
    ticker, looks, again = Ticker(), [0, 0], asyncio.Event()

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

    with caplog.at_level(logging.ERROR), ticker.follow(gone, 0.0), ticker.follow(broken, 0.0), ticker.follow(well, 0.0):
        async with asyncio.timeout(20):
            await again.wait()
    assert looks == [1, 1]
    assert caplog.messages == ["a stream could not be looked at"]
