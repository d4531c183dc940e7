"""Progress of a stream that waits, for clients that ask: its place in line and expected wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from server.api.limits import Limits
from server.api.output.sse import HEADER, Progress, progress_in
from tests.server.fakes import ANSWER
from tests.server.live import Live, chat_body, parse_events, text_of

CHAT = "/v1/chat/completions"
ASKED = {"include_progress": True}


@pytest.fixture
def limits() -> Limits:
    """Without keep-alives: progress is told to those who ask all the same."""
    return Limits(sse_keep_alive_interval=0, place_interval=0.01)


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


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_that_does_not_ask_gets_no_comment(live: Live, path: str) -> None:
    """Comments went to everybody, and some clients lose the event behind one."""
    async with (
        streaming(live, CHAT, chat_body(stream_options=ASKED)) as asking,
        streaming(live, path, PATHS[path], **{HEADER: "0"}) as content,
    ):
        for _ in range(3):
            await asking.readuntil(b": queued place=1\n\n")  # by now this one would have been told as well
        live.dispatcher.release()
        lines = (await content.read()).splitlines()
    assert lines and not [line for line in lines if not line.startswith((b"data: ", b"event: ")) and line]


async def test_a_header_that_says_neither_yes_nor_no_is_refused(live: Live) -> None:
    async with live.session.post(live.url + CHAT, json=chat_body(stream=True), headers={HEADER: "yes"}) as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"], error["message"]) == (400, HEADER, f"{HEADER}: must be 0 or 1, not 'yes'")


@pytest.mark.parametrize("progress", [Progress(3, 1.2), Progress(1, None), Progress(12, 0.0)])
def test_a_client_reads_what_the_server_words(progress: Progress) -> None:
    assert progress_in(progress.comment()) == progress
    assert progress_in("keep-alive") is None
