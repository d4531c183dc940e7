"""The way of an answer to its reader: in order, whole, merged for slow readers, and ended once."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from engine.messages import FinishReason, RowUpdate, TokenLogprob
from scheduler.stream import TokenStream, merge
from tests.scheduler.fakes import token


async def read(stream: TokenStream) -> list[RowUpdate]:
    async with asyncio.timeout(20):
        return [update async for update in stream]


def test_two_updates_in_order_are_one() -> None:
    one, two = TokenLogprob(1, -1.0, 1), TokenLogprob(2, -2.0, 1)
    first = RowUpdate(7, (1,), "a", (one,), prompt_logprobs=(None, one))
    second = RowUpdate(7, (2, 3), "b", (two,), finish_reason=FinishReason.STOP, stop_reason="x", error="e")
    assert merge(first, second) == RowUpdate(
        7, (1, 2, 3), "ab", (one, two), (None, one), FinishReason.STOP, stop_reason="x", error="e"
    )


async def test_a_reader_that_keeps_up_sees_each_update_as_it_comes() -> None:
    stream = TokenStream()
    reader = aiter(stream)
    for step in range(3):
        stream.put(token(0, step))
        async with asyncio.timeout(20):
            assert await anext(reader) == token(0, step)


async def test_a_slow_reader_finds_its_backlog_in_one_update() -> None:
    stream = TokenStream()
    for step in range(1000):
        stream.put(token(0, step, text=chr(97 + step % 26)))
    assert stream._backlog == token(0, *range(1000), text="".join(chr(97 + step % 26) for step in range(1000)))
    stream.put(token(0, 1000, end=FinishReason.LENGTH))
    (update,) = await read(stream)
    assert update.token_ids == tuple(range(1001)) and update.finish_reason is FinishReason.LENGTH


async def test_a_waiting_reader_is_woken_and_ends_after_the_last_update() -> None:
    stream = TokenStream()
    reading = asyncio.create_task(read(stream))
    await asyncio.sleep(0)
    stream.put(token(0, 1))
    await asyncio.sleep(0)
    stream.put(token(0, end=FinishReason.ERROR))
    assert await reading == [token(0, 1), token(0, end=FinishReason.ERROR)]


@given(bursts=st.lists(st.lists(st.text(max_size=3), max_size=4), max_size=6))
def test_whatever_the_pace_the_pieces_join_to_the_whole(bursts: list[list[str]]) -> None:
    async def scenario() -> list[RowUpdate]:
        stream = TokenStream()
        reading = asyncio.create_task(read(stream))
        for burst in bursts:
            for piece in burst:
                stream.put(token(0, len(piece), text=piece))
            await asyncio.sleep(0)
        stream.put(token(0, end=FinishReason.STOP))
        return await reading

    pieces = [piece for burst in bursts for piece in burst]
    updates = asyncio.run(scenario())
    assert "".join(update.text for update in updates) == "".join(pieces)
    assert [one for update in updates for one in update.token_ids] == [len(piece) for piece in pieces]
    assert [update.finish_reason for update in updates[:-1]] == [None] * (len(updates) - 1)
    assert len(updates) <= 1 + sum(1 for burst in bursts if burst)
