"""Many streams at once from a live server with few slots: most wait, and their client trims what arrives."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.live_server import serve_here
from tests.server.api.trimming_reader import TrimmingReader
from tests.server.live import chat_body

BODY = chat_body(max_tokens=12, ignore_eos=True, temperature=0, stream=True, stream_options={"include_usage": True})


@pytest.fixture(scope="module")
def url(tiny_folder: Path) -> Iterator[str]:
    with serve_here(
        tiny_folder, "--max-num-seqs", "16", "--dtype", "float32", "--sse-keep-alive-interval", "0.02"
    ) as url:
        yield url


@pytest.mark.parametrize("at_once", [64, 256])
async def test_none_of_many_streams_is_lost(url: str, at_once: int) -> None:
    """With 64 requests at once 156 of 192 failed: a comment that told a place took the next event with it."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        counts = await asyncio.gather(*(streamed_tokens(session, url) for _ in range(at_once)))
    assert counts == [12] * at_once


async def streamed_tokens(session: aiohttp.ClientSession, url: str) -> int:
    """The tokens that a whole stream says it had; none of its events may have been lost."""
    reader = TrimmingReader()
    async with session.post(f"{url}/v1/chat/completions", json=BODY) as response:
        events = [event async for piece in response.content.iter_any() for event in reader.feed(piece)]
    *chunks, last = events
    assert reader.ended
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    tokens: int = last["usage"]["completion_tokens"]
    return tokens
