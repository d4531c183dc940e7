"""Looks at many streams, and the progress of a stream that waits, for clients that ask."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial

import aiohttp
import orjson
import pytest

from scheduler.stream import AT_ONCE, Wakeups
from server.api.output.sse import HEADER, Progress, look_often, progress_in
from server.config import ServeConfig
from server.line_ends import escape_line_ends
from tests.server.fakes import ANSWER, say
from tests.server.live import Live, chat_body, parse_events, text_of


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
        await again.wait()
    assert looks == [1, 1]
    assert caplog.messages == ["a stream could not be looked at"]


CHAT = "/v1/chat/completions"
ASKED = {"include_progress": True}


@pytest.fixture
def limits(quick_looks: None) -> ServeConfig:
    """Without keep-alives: progress is told to those who ask all the same."""
    return ServeConfig(sse_keep_alive_interval=0)


@asynccontextmanager
async def streaming(
    live: Live, path: str, body: dict[str, object], **headers: str
) -> AsyncIterator[aiohttp.StreamReader]:
    """A stream that has begun and waits."""
    live.dispatcher.pause = 0
    async with live.session.post(live.url + path, json=body | {"stream": True}, headers=headers) as response:
        assert response.status == 200, await response.text()
        yield response.content


async def test_a_stream_that_asks_is_told_its_place_and_expected_wait_and_again_when_they_change(live: Live) -> None:
    live.dispatcher.crowd(waiting=2)
    live.dispatcher.waits.wait = lambda request: 1.25  # type: ignore[method-assign]
    async with streaming(live, CHAT, chat_body(stream_options=ASKED)) as content:
        await content.readuntil(b": queued place=3 expected_wait_s=1.2\n\n")
        live.dispatcher.waits.wait = lambda request: None  # type: ignore[method-assign]
        for ahead in [*live.dispatcher.waiting][:2]:
            live.dispatcher.cancel(ahead)
        await content.readuntil(b": queued place=1\n\n")
        await content.readuntil(b": queued place=1\n\n")  # told again, after a while
        live.dispatcher.release()
        assert text_of(parse_events(await content.read())) == ANSWER


async def test_of_several_answers_the_first_to_start_has_the_place(live: Live) -> None:
    live.dispatcher.crowd(waiting=3)
    async with streaming(live, CHAT, chat_body(stream_options=ASKED, n=3)) as content:
        await content.readuntil(b": queued place=4\n\n")
        live.dispatcher.release()
        assert b": queued" not in await content.read()


PATHS: dict[str, dict[str, object]] = {
    CHAT: chat_body(),
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
}


@pytest.mark.parametrize("path", PATHS)
async def test_a_header_asks_as_well(live: Live, path: str) -> None:
    async with streaming(live, path, PATHS[path], **{HEADER: "1"}) as content:
        await content.readuntil(b": queued place=1\n\n")


@pytest.mark.parametrize("headers", [{}, {HEADER: "0"}], ids=["unasked", "declined"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_that_does_not_ask_gets_no_comment(live: Live, path: str, headers: dict[str, str]) -> None:
    """Comments went to everybody, and some clients lose the event behind one."""
    async with (
        streaming(live, CHAT, chat_body(stream_options=ASKED)) as asking,
        streaming(live, path, PATHS[path], **headers) as content,
    ):
        for _ in range(3):
            await asking.readuntil(b": queued place=1\n\n")  # by now this one would have been told as well
        live.dispatcher.release()
        lines = (await content.read()).splitlines()
    assert lines and not [line for line in lines if not line.startswith((b"data: ", b"event: ")) and line]


async def test_a_header_that_says_neither_yes_nor_no_is_refused(live: Live) -> None:
    status, reply = await live.post(CHAT, chat_body(stream=True), **{HEADER: "yes"})
    said = f"{HEADER}: must be 0 or 1, not 'yes'"
    assert (status, reply["error"]["param"], reply["error"]["message"]) == (400, HEADER, said)


@pytest.mark.parametrize("progress", [Progress(3, 1.2), Progress(1, None), Progress(12, 0.0)])
def test_a_client_reads_what_the_server_words(progress: Progress) -> None:
    assert progress_in(progress.comment()) == progress
    assert progress_in("keep-alive") is None


ENDS = "a\x85b\u2028c\u2029d"  # where str.splitlines ends a line, and so do clients that read by it


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
async def test_no_line_ends_within_an_answer(live: Live, path: str, stream: bool) -> None:
    live.dispatcher.script = partial(say, ENDS)
    body = (
        {"prompt": "Hi"} if path == "/v1/completions" else {"input": "Hi"} if path == "/v1/responses" else chat_body()
    )
    body = {**body, "stream": stream, "max_output_tokens" if path == "/v1/responses" else "max_tokens": 40}
    async with live.session.post(live.url + path, json=body) as response:
        text = await response.text()
    assert response.status == 200
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
