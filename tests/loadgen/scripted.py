"""A server on the loopback interface that answers with exactly the bytes a test tells it, and a clock that it sets."""

import asyncio
import os
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from loadgen.result_file import PROGRAM

ROOT = Path(__file__).parents[2]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class HandClock:
    """Tells the time that the script set, and lets the script wait until it was asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked = 0
        self._changed = asyncio.Event()

    def __call__(self) -> float:
        self.asked += 1
        self._changed.set()
        return self.now

    async def until_asked(self, times: int) -> None:
        while self.asked < times:
            self._changed.clear()
            await self._changed.wait()


@dataclass(frozen=True, slots=True)
class Answer:
    """Bytes that the server writes, and how it goes on: closes, aborts, or stays silent until the client leaves."""

    pieces: Sequence[bytes]
    then: Literal["keep", "close", "abort", "hang"] = "keep"
    times: Sequence[float] = ()
    """When each piece is written, by the clock; the next waits until the client has looked at the clock."""


@dataclass(slots=True)
class Scripted:
    """A scripted server as a test sees it: its address, its clock, and the requests that came."""

    url: str
    clock: HandClock
    requests: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Head and body of each."""
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at every request."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client has left in the middle of a silence."""


@asynccontextmanager
async def scripted(*answers: Answer) -> AsyncIterator[Scripted]:
    """A server that gives these answers in turn, and goes on with the last."""
    clock = HandClock()
    seen = Scripted("", clock)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await _request(reader)
            answer = answers[min(len(seen.requests), len(answers) - 1)]
            seen.requests.append(request)
            seen.heard.set()
            if not await _play(answer, seen, reader, writer):
                return

    async with listening(serve) as seen.url:
        yield seen


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[str]:
    """The URL of a server whose connections are all closed at the end."""
    running: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                await serve(reader, writer)
        finally:
            running.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        left = list(running)
        for task in left:
            task.cancel()
        await asyncio.gather(*left)


async def _request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head, await reader.readexactly(int(lengths[0].partition(b":")[2])) if lengths else b""


async def _play(answer: Answer, seen: Scripted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Write an answer; tells whether the connection stays open."""
    for number, piece in enumerate(answer.pieces):
        if answer.times:
            seen.clock.now = answer.times[number]
        asked = seen.clock.asked
        writer.write(piece)
        await writer.drain()
        if answer.times:
            await seen.clock.until_asked(asked + 1)
        else:
            await asyncio.sleep(0)  # so that the client reads this piece by itself
    if answer.then == "abort":
        writer.transport.abort()
    if answer.then == "hang":
        await reader.read()
        seen.left.set()
    return answer.then == "keep"


def chunk(data: bytes) -> bytes:
    """A chunk of a chunked HTTP body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*events: bytes) -> Answer:
    """A whole and well-formed answer, an event a piece."""
    *first, last = (*events, DONE)
    return Answer([HEAD, *map(chunk, first), chunk(last) + chunk(b"")])


def said(text: str) -> bytes:
    """A chat event."""
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text.encode()


def role() -> bytes:
    """The event with which some servers begin, in which nothing is said."""
    return b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'


def finish(reason: str = "stop") -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"%b"}]}\n\n' % reason.encode()


def usage(prompt: int, made: int) -> bytes:
    return b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n' % (prompt, made)


def plain(status: str, body: bytes, *headers: str) -> Answer:
    """An answer that is no stream."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Content-Type: application/json", *headers, "", ""]
    return Answer(["\r\n".join(lines).encode() + body])


MODELS = plain("200 OK", b'{"data":[{"id":"org/m"}]}')
WHOLE = stream(said("a"), said("b"), finish(), usage(5, 2))
RANDOM = ("--dataset-name", "random", "--random-input-len", "8", "--random-output-len", "6")


async def start(*words: str, environ: Mapping[str, str] | None = None) -> Process:
    """The program, against scripted servers."""
    own = {**os.environ, **(environ or {})}
    return await create_subprocess_exec(*PROGRAM, *words, cwd=ROOT, stdout=PIPE, stderr=PIPE, env=own)


async def run(*words: str, environ: Mapping[str, str] | None = None) -> tuple[int | None, str, str]:
    """Exit code, output and errors of the program."""
    process = await start(*words, environ=environ)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()
