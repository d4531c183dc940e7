"""Pauses of the event loop that Python itself makes."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest

from engine.messages import RowUpdate
from scheduler.stream import TokenStream, Wakeups
from server.process.life import shorten_pauses


@pytest.mark.usefixtures("interpreter_settings")
async def test_what_a_thousand_streams_make_for_moments_does_not_count_as_old() -> None:
    """Every ninety steps or so all objects of all streams were looked through, for 0.1 s."""

    async def follow(stream: TokenStream) -> None:
        async for _ in stream:
            pass

    wakeups, collections = Wakeups(), Counter[int]()
    streams = [TokenStream(wakeups) for _ in range(1000)]
    reading = [asyncio.create_task(follow(stream)) for stream in streams]
    await asyncio.sleep(0)
    shorten_pauses()

    def count(phase: str, info: dict[str, int]) -> None:
        collections[info["generation"]] += phase == "start"

    gc.callbacks.append(count)
    for _ in range(50):
        for row, stream in enumerate(streams):
            stream.put(RowUpdate(row, (1,), "a"))
        await asyncio.sleep(0)
    gc.callbacks.remove(count)
    for task in reading:
        task.cancel()
    assert not collections[1] and not collections[2], collections
