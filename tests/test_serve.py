"""A server with a real tokenizer, read over a raw socket: what is on the wire is well-formed and whole."""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests import tiny
from tests.live_server import serve_here
from tests.server.api.trimming_reader import TrimmingReader
from tests.server.live import chat_body, dechunk, parse_events, raw_post

SAYING = "世猫😀é م"
"""Characters of one to four bytes, whose tokens are parts of characters."""


@pytest.fixture(scope="module")
def parrot_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tiny.build_parrot(tmp_path_factory.mktemp("models") / "parrot", SAYING)
    with serve_here(folder) as url:
        yield url


def post(url: str, **body: object) -> bytes:
    """The body of the answer to a chat request, chunks joined."""
    asked = raw_post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0} | body)
    address = urlsplit(url)
    with socket.create_connection((address.hostname or "", address.port or 80), timeout=60) as connection:
        connection.sendall(asked.replace(b"Host: test", b"Host: [::1]\r\nConnection: close"))
        raw = b"".join(iter(lambda: connection.recv(7), b""))  # an odd size, to cut characters apart
    headers, _, rest = raw.partition(b"\r\n\r\n")
    assert headers.split(b"\r\n")[0].endswith(b"200 OK")
    return b"".join(dechunk(rest)) if b"transfer-encoding: chunked" in headers.lower() else rest


def choices_of(url: str, **body: object) -> Any:
    return json.loads(post(url, **body))["choices"]


@pytest.mark.parametrize("max_tokens", range(1, 20))
def test_a_stream_joins_to_the_whole_answer_wherever_it_is_cut(parrot_url: str, max_tokens: int) -> None:
    message = choices_of(parrot_url, max_tokens=max_tokens)[0]["message"]["content"]
    stream = post(parrot_url, max_tokens=max_tokens, stream=True)
    pieces = [event["choices"][0]["delta"].get("content") or "" for event in parse_events(stream)]
    assert "".join(pieces) == message
    assert (SAYING * 20).startswith(message)


def test_answers_that_repeat_themselves_are_ended_where_that_is_wanted(tmp_path: Path) -> None:
    """Whole and streamed, each of several; not one that has to match a grammar."""
    with serve_here(tiny.build_parrot(tmp_path / "parrot", SAYING), "--stop-repetition") as url:
        whole = choices_of(url, n=2, max_tokens=400)
        (last,) = parse_events(post(url, max_tokens=400, stream=True))[-1]["choices"]
        (held,) = choices_of(url, max_tokens=300, structured_outputs={"regex": f"[{SAYING}]*"})
        ends = [(one["finish_reason"], one["stop_reason"]) for one in (*whole, last, held)]
        assert ends == [("stop", "repetition")] * 3 + [("length", None)]


# Many streams at once with few slots: most wait, and their client trims what arrives

STREAMED = chat_body(max_tokens=12, ignore_eos=True, temperature=0, stream=True, stream_options={"include_usage": True})


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
    async with session.post(f"{url}/v1/chat/completions", json=STREAMED) as response:
        events = [event async for piece in response.content.iter_any() for event in reader.feed(piece)]
    *chunks, last = events
    assert reader.ended
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    tokens: int = last["usage"]["completion_tokens"]
    return tokens


# Shares of service: two keys, one of which asks for ten times as much

MODEST, GREEDY = "the-modest-client-00", "the-greedy-client-00"
BODY = {"prompt": "the", "max_tokens": 8, "ignore_eos": True}
FIRST, ANSWERS = 30, 75
"""Each key's answers before both wait all the while, however late its connections were made, and those counted."""


@pytest.mark.slow
async def test_each_key_has_its_share_though_the_other_asks_for_ten_times_as_much(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{MODEST} 2\n{GREEDY}\n")
    file.chmod(0o600)
    flags = ("--api-key-file", str(file), "--max-num-seqs", "2", "--prefill-ahead", "1", "--strategy", "lengthwise")
    answered, counted = Counter[str](), list[str]()
    enough = asyncio.Event()

    async def ask_on(session: aiohttp.ClientSession, url: str, key: str) -> None:
        while True:
            headers = {"Authorization": f"Bearer {key}"}
            async with session.post(f"{url}/v1/completions", json=BODY, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
            answered[key] += 1
            if min(answered[MODEST], answered[GREEDY]) > FIRST:
                counted.append(key)
            if len(counted) >= ANSWERS:
                enough.set()

    with serve_here(tiny.build(tmp_path / "model"), *flags) as url:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            calls = [asyncio.create_task(ask_on(session, url, key)) for key in [MODEST] * 12 + [GREEDY] * 120]
            await asyncio.wait([*calls, asyncio.create_task(enough.wait())], return_when=asyncio.FIRST_COMPLETED)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
    assert abs(counted[:ANSWERS].count(MODEST) - 50) <= 4  # of 75, with weights of 2 to 1
