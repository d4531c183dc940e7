"""The way of an answer to its reader: in order, whole, joined for slow readers, and ended once."""

import asyncio
from itertools import chain

import pytest
from hypothesis import given, strategies as st

from engine.messages import FinishReason, RowUpdate, TokenLogprob
from scheduler.stream import AT_ONCE, SLICE, TokenStream, Wakeups
from tests.scheduler.fakes import settle, steps, token


async def read(stream: TokenStream) -> list[RowUpdate]:
    return [update async for update in stream]


def test_two_updates_in_order_are_one() -> None:
    """How much of the prompt was kept was lost where an answer was held until its batch ended."""
    one, two = TokenLogprob(1, -1.0, 1), TokenLogprob(2, -2.0, 1)
    first = RowUpdate(7, (1,), "a", (one,), prompt_logprobs=(None, one), cached_prompt=9)
    second = RowUpdate(7, (2, 3), "b", (two,), finish_reason=FinishReason.STOP, stop_reason="x", error="e")
    assert RowUpdate.join([first, second]) == RowUpdate(
        7, (1, 2, 3), "ab", (one, two), (None, one), FinishReason.STOP, stop_reason="x", error="e", cached_prompt=9
    )


@given(rounds=st.lists(st.lists(st.tuples(st.integers(0, 2 * AT_ONCE), st.text(max_size=3))), max_size=6))
def test_whatever_the_pace_each_readers_pieces_join_to_its_whole(rounds: list[list[tuple[int, str]]]) -> None:
    """Three dozen streams whose readers are woken in turns; between two rounds the loop runs once, so some lag."""

    async def scenario() -> list[list[RowUpdate]]:
        wakeups = Wakeups()
        streams = [TokenStream(wakeups) for _ in wholes]
        reading = [asyncio.create_task(read(stream)) for stream in streams]
        for pieces in rounds:
            for place, piece in pieces:
                streams[place].put(token(place, len(piece), text=piece))
            await asyncio.sleep(0)
        for place, stream in enumerate(streams):
            stream.put(token(place, end=FinishReason.STOP))
        return await asyncio.gather(*reading)

    wholes: list[list[str]] = [[] for _ in range(2 * AT_ONCE + 1)]
    for place, piece in chain.from_iterable(rounds):
        wholes[place].append(piece)
    for whole, updates in zip(wholes, asyncio.run(scenario()), strict=True):
        assert "".join(update.text for update in updates) == "".join(whole)
        assert [one for update in updates for one in update.token_ids] == [len(piece) for piece in whole]
        assert [update.finish_reason for update in updates] == [None] * (len(updates) - 1) + [FinishReason.STOP]
        assert len(updates) <= 1 + len(rounds)


async def test_a_reader_that_is_cancelled_before_it_is_woken_holds_nobody_up() -> None:
    wakeups = Wakeups()
    streams = [TokenStream(wakeups) for _ in range(2)]
    reading = [asyncio.create_task(read(stream)) for stream in streams]
    await settle()
    for place, stream in enumerate(streams):
        stream.put(token(place, end=FinishReason.STOP))
    reading[0].cancel()
    assert await reading[1] == [token(1, end=FinishReason.STOP)]
    assert reading[0].cancelled()


@pytest.mark.parametrize(("seconds", "most"), [(0.0, 100), (0.3 * SLICE, 4), (2 * SLICE, 1)])
async def test_sending_in_one_iteration_is_bounded(monkeypatch: pytest.MonkeyPatch, seconds: float, most: int) -> None:
    """Eight were woken in each, however long the rest of it took: while calls were read tokens came seconds late."""
    loop, now, sent = asyncio.get_running_loop(), [0.0], list[RowUpdate]()
    monkeypatch.setattr(loop, "time", lambda: now[0])
    wakeups = Wakeups()
    streams = [TokenStream(wakeups) for _ in range(100)]
    reading = [asyncio.create_task(read(stream)) for stream in streams]
    calls = [asyncio.create_task(wakeups.turn()) for _ in range(20 * AT_ONCE)]
    await asyncio.sleep(0)

    def send(update: RowUpdate) -> bool:
        now[0] += seconds
        sent.append(update)
        return True

    for place, stream in enumerate(streams):
        stream.shortcut = send
        stream.put(token(place, 1))
    counts = await steps(lambda: len(sent), len(streams))
    assert max(counts) == most
    assert sum(call.done() for call in calls) <= AT_ONCE * (len(counts) + 1)
    assert [update.row_id for update in sent] == list(range(100))
    for task in (*reading, *calls):
        task.cancel()


async def test_a_stream_tells_when_the_oldest_token_of_what_was_taken_was_made() -> None:
    wakeups = Wakeups()
    stream = TokenStream(wakeups)
    reader = aiter(stream)
    for wakeups.made in (3.0, 4.0):
        stream.put(token(0, 1))
    assert await anext(reader) == token(0, 1, 1) and stream.made == 3.0
    wakeups.made = 5.0
    stream.put(token(0, 2))
    assert await anext(reader) == token(0, 2) and stream.made == 5.0


async def test_a_shortcut_takes_what_it_can_and_the_reader_gets_the_rest_in_order() -> None:
    stream, taken = TokenStream(), list[RowUpdate]()

    def take(update: RowUpdate) -> bool:
        if update.text == "fails":
            raise ConnectionError
        taken.append(update)
        return update.text == "plain" and update.finish_reason is None

    stream.shortcut = take
    reading = asyncio.create_task(read(stream))
    await settle()
    for backlog in (["plain"], ["plain"], ["odd"], ["plain"], ["fails"], ["plain"], ["a", "b"]):
        for text in backlog:
            stream.put(RowUpdate(0, (1,), text))
        await settle()
    for text, end in (("c", None), ("d", FinishReason.STOP)):
        stream.put(RowUpdate(0, (1,), text, finish_reason=end))
    assert [update.text for update in await reading] == ["odd", "fails", "ab", "cd"]
    assert [update.text for update in taken] == ["plain", "plain", "odd", "plain", "plain", "ab", "cd"]


async def test_dear_tasks_are_woken_one_by_one_and_cheap_ones_together() -> None:
    """By a count of eight, tokens of a burst came seconds late while calls were read."""
    loop, rounds = asyncio.get_running_loop(), [0]

    def look() -> None:
        rounds.append(0)
        loop.call_soon(look)

    async def work(wakeups: Wakeups, seconds: float) -> None:
        await wakeups.turn()
        rounds[-1] += 1
        begun = loop.time()
        while loop.time() - begun < seconds:
            pass

    look()
    dear, cheap = Wakeups(0.001), Wakeups(0.05)
    await asyncio.gather(*(work(dear, 0.002) for _ in range(40)))
    assert sorted(filter(None, rounds))[:-1] == [1] * 32
    rounds.clear()
    rounds.append(0)
    await asyncio.gather(*(work(cheap, 0.0) for _ in range(400)))
    assert max(rounds) == AT_ONCE
