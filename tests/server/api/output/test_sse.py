"""Looks at many streams, and the progress of a stream that waits, for clients that ask."""

import asyncio
import logging
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import DEFAULT, AsyncMock

import orjson
import pytest

from scheduler.stream import AT_ONCE, Wakeups
from server.api.output.sse import HEADER, Progress, look_often, progress_in
from server.config import ServeConfig
from server.line_ends import escape_line_ends
from tests.server.fakes import ANSWER, say
from tests.server.live import CHAT, Live, chat_body, parse_events, text_of


async def test_it_looks_as_often_as_each_look_says_until_the_context_is_left() -> None:
    turns, enough = Wakeups(), asyncio.Event()
    once, often = AsyncMock(return_value=None), AsyncMock(return_value=0.0)
    often.side_effect = lambda: enough.set() if often.await_count == 3 else DEFAULT
    with look_often(once, 0.0, turns):
        with look_often(often, 0.0, turns):
            await enough.wait()
        count = often.await_count
        for _ in range(10):
            await asyncio.sleep(0)
        assert (once.await_count, often.await_count) == (1, count)


async def test_streams_whose_time_is_the_same_are_looked_at_a_few_at_a_time() -> None:
    """Four thousand waiting streams were told their places in one go, and all else waited for 0.1 s."""
    turns, look, counts = Wakeups(), AsyncMock(return_value=None), [0]
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(look_often(look, 0.0, turns))
        while counts[-1] < 50:
            await asyncio.sleep(0)
            counts.append(look.await_count)
    assert max(after - before for before, after in pairwise(counts)) <= AT_ONCE


async def test_a_look_that_fails_is_the_last_of_its_stream_only(caplog: pytest.LogCaptureFixture) -> None:
    turns, again = Wakeups(), asyncio.Event()
    gone, broken = AsyncMock(side_effect=ConnectionResetError), AsyncMock(side_effect=ValueError("broken"))

    async def well() -> float | None:
        if gone.call_count == broken.call_count == 1:
            again.set()
        return 0.0

    with caplog.at_level(logging.ERROR), ExitStack() as stack:
        for look in (gone, broken, well):
            stack.enter_context(look_often(look, 0.0, turns))
        await again.wait()
    assert gone.call_count == broken.call_count == 1
    assert caplog.messages == ["a stream could not be looked at"]


ASKED = {"include_progress": True}


@pytest.fixture
def limits(quick_looks: None) -> ServeConfig:
    """Without keep-alives: progress is told to those who ask all the same."""
    return ServeConfig(sse_keep_alive_interval=0)


async def test_a_stream_that_asks_is_told_its_place_and_expected_wait_and_again_when_they_change(live: Live) -> None:
    live.dispatcher.crowd(waiting=2)
    live.dispatcher.waits.wait = lambda request: 1.25  # type: ignore[method-assign]
    async with live.streaming(CHAT, chat_body(stream_options=ASKED)) as content:
        await content.readuntil(b": queued place=3 expected_wait_s=1.2\n\n")
        live.dispatcher.waits.wait = lambda request: None  # type: ignore[method-assign]
        for ahead in [*live.dispatcher.waiting][:2]:
            live.dispatcher.cancel(ahead)
        for _ in range(2):  # told again, after a while
            await content.readuntil(b": queued place=1\n\n")
        live.dispatcher.release()
        assert text_of(parse_events(await content.read())) == ANSWER


async def test_of_several_answers_the_first_to_start_has_the_place(live: Live) -> None:
    live.dispatcher.crowd(waiting=3)
    async with live.streaming(CHAT, chat_body(stream_options=ASKED, n=3)) as content:
        await content.readuntil(b": queued place=4\n\n")
        live.dispatcher.release()
        assert b": queued" not in await content.read()


BODIES: dict[str, dict[str, Any]] = {
    CHAT: chat_body(max_tokens=40),
    "/v1/completions": {"prompt": "Hi", "max_tokens": 40},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 40},
    "/v1/messages": chat_body(max_tokens=40),
}
PATHS = [*BODIES][:3]  # which have comments


@pytest.mark.parametrize("path", PATHS)
async def test_a_header_asks_as_well(live: Live, path: str) -> None:
    live.dispatcher.pause = 0
    async with live.streaming(path, BODIES[path], {HEADER: "1"}) as content:
        await content.readuntil(b": queued place=1\n\n")


@pytest.mark.parametrize("headers", [{}, {HEADER: "0"}], ids=["unasked", "declined"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_that_does_not_ask_gets_no_comment(live: Live, path: str, headers: dict[str, str]) -> None:
    """Comments went to everybody, and some clients lose the event behind one."""
    live.dispatcher.pause = 0
    other = live.streaming(CHAT, chat_body(stream_options=ASKED))
    async with other as asking, live.streaming(path, BODIES[path], headers) as content:
        for _ in range(3):
            await asking.readuntil(b": queued place=1\n\n")  # by now this one would have been told as well
        live.dispatcher.release()
        lines = (await content.read()).splitlines()
    assert lines and not [line for line in lines if not line.startswith((b"data: ", b"event: ")) and line]


async def test_a_header_that_says_neither_yes_nor_no_is_refused(live: Live) -> None:
    error = await live.refused(CHAT, chat_body(stream=True), 400, **{HEADER: "yes"})
    assert (error["param"], error["message"]) == (HEADER, f"{HEADER}: must be 0 or 1, not 'yes'")


def test_a_client_reads_what_the_server_words() -> None:
    for progress in (Progress(3, 1.2), Progress(1, None), Progress(12, 0.0)):
        assert progress_in(progress.comment()) == progress
    assert progress_in("keep-alive") is None


ENDS = "a\x85b\u2028c\u2029d"  # where str.splitlines ends a line, and so do clients that read by it


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_no_line_ends_within_an_answer(live: Live, path: str, stream: bool) -> None:
    live.dispatcher.script = partial(say, ENDS)
    reply = await live.ask("POST", path, BODIES[path] | {"stream": stream})
    assert reply.status == 200
    text = reply.body.decode()
    for line in text.splitlines():
        if line.startswith(("data: {", "{")):
            orjson.loads(line.removeprefix("data: "))
    assert not set("\x85\u2028\u2029") & set(text)
    assert all(rf"\u{ord(letter):04x}" in text for letter in "\x85\u2028\u2029")


def test_escaping_ends_of_lines_changes_nothing_else() -> None:
    for text in (ENDS, "é “x” 你好 🙂 \u2027\u202a\x84\x86", "plain"):
        data = orjson.dumps({"a": text})
        escaped = escape_line_ends(data)
        assert orjson.loads(escaped) == {"a": text}
        assert len(escaped.decode().splitlines()) == 1
        assert (escaped == data) == (text != ENDS)
