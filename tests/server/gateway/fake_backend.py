"""A cheap server with OpenAI's API in a process of its own, whose rows get a token a step in the slots that it has.

It speaks HTTP/1.1 by hand, so that a measurement of what stands before it is not one of it.

    python -m tests.server.gateway.fake_backend --slots 4 --step-ms 5
"""

import argparse
import asyncio
import ctypes
import json
import os
import signal
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import uvloop

PR_SET_PDEATHSIG = 1
"""The option of prctl(2) that ends a child with its parent."""

EVENT = (
    b'data: {"id":"chatcmpl-8f14e45fceea167a","object":"chat.completion.chunk","created":1790000000,"model":"fake",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":%b}],"usage":null}\n\n'
)
TOKEN, LAST = EVENT % b"null", EVENT % b'"stop"'
USAGE = b'data: {"id":"chatcmpl-8f14e45fceea167a","object":"chat.completion.chunk","choices":[],"usage":%b}\n\n'
DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%b\r\n\r\n"
STREAM = HEAD % (b"text/event-stream; charset=utf-8", b"Transfer-Encoding: chunked")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass(eq=False)
class Row:
    """An answer of as many tokens as its call allows."""

    to: asyncio.Transport
    tokens: int
    prompt: int
    stream: bool
    usage: bool
    made: int = 0

    def step(self) -> bool:
        """Make a token; whether more are to come."""
        self.made += 1
        last = self.made == self.tokens
        if self.stream:
            head = STREAM if self.made == 1 else b""
            self.to.write(head + chunk(LAST if last else TOKEN) + (self._end() if last else b""))
        elif last:
            choice = {"index": 0, "message": {"content": " word" * self.tokens}, "finish_reason": "stop"}
            body = {"choices": [choice], "usage": self._usage()}
            self.to.write(whole(body))
        return not last

    def _usage(self) -> dict[str, int]:
        return {"prompt_tokens": self.prompt, "completion_tokens": self.tokens}

    def _end(self) -> bytes:
        usage = chunk(USAGE % json.dumps(self._usage()).encode()) if self.usage else b""
        return usage + chunk(DONE) + b"0\r\n\r\n"


def whole(body: Any, kind: bytes = b"application/json") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HEAD % (kind, b"Content-Length: %d" % len(data)) + data


@dataclass(eq=False)
class Engine:
    """First come, first served in its slots; where tokens do not fit, the newest row begins anew, as in vLLM."""

    slots: int
    step: float
    """Seconds."""
    blocks: int | None = None
    """Blocks of 16 tokens of K and V; None: no bound, and none is told."""
    waiting: deque[Row] = field(default_factory=deque)
    running: list[Row] = field(default_factory=list)
    some: asyncio.Event = field(default_factory=asyncio.Event)
    served: int = 0
    preemptions: int = 0
    most: int = 0

    def add(self, row: Row) -> None:
        self.waiting.append(row)
        self.some.set()

    def drop(self, row: Row) -> None:
        for place in (self.waiting, self.running):
            if row in place:
                place.remove(row)

    async def run(self) -> None:
        while True:
            await self.some.wait()
            self.some.clear()
            while self.waiting or self.running:
                await asyncio.sleep(self.step)
                self.step_rows()

    def step_rows(self) -> None:
        """Make a token of each row in a slot."""
        while self.waiting and len(self.running) < self.slots and self._fits(self.waiting[0]):
            self.running.append(self.waiting.popleft())
        while self.blocks is not None and len(self.running) > 1 and self._used() > 16 * self.blocks:
            self.waiting.appendleft(self.running.pop())
            self.preemptions += 1
        self.most = max(self.most, len(self.running))
        going = [row for row in self.running if row.step()]
        self.served += len(self.running) - len(going)
        self.running = going

    def _used(self) -> int:
        return sum(row.prompt + row.made + 1 for row in self.running)

    def _fits(self, row: Row) -> bool:
        return self.blocks is None or self._used() + row.prompt + row.made + 1 <= 16 * self.blocks

    def metrics(self) -> bytes:
        told = f"vllm:num_preemptions_total {self.preemptions}.0\n"
        if self.blocks is not None:
            told += f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{self.blocks}"}} 1.0\n'
        return told.encode()

    def state(self) -> dict[str, int]:
        now = {"waiting": len(self.waiting), "running": len(self.running), "pid": os.getpid()}
        return {**now, "most": self.most, "served": self.served, "preemptions": self.preemptions}


class Connection(asyncio.Protocol):
    """Calls of one client, one after another."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._read = b""
        self._row: Row | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._to = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def connection_lost(self, exc: Exception | None) -> None:
        if self._row is not None:
            self._engine.drop(self._row)

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, found, rest = self._read.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if found and len(rest) >= length:
            self._read = rest[length:]
            self._answer(head.split()[1], rest[:length])

    def _answer(self, path: bytes, body: bytes) -> None:
        match path:
            case b"/v1/chat/completions":
                asked = json.loads(body)
                options = asked.get("stream_options") or {}
                usage = bool(options.get("include_usage"))
                prompt = max(1, len(json.dumps(asked["messages"])) // 4)
                self._row = Row(self._to, asked["max_tokens"], prompt, bool(asked.get("stream")), usage)
                self._engine.add(self._row)
            case b"/v1/models":
                self._to.write(whole({"data": [{"id": "fake"}]}))
            case b"/metrics":
                self._to.write(whole(self._engine.metrics(), b"text/plain"))
            case b"/state":
                self._to.write(whole(self._engine.state()))
            case _:
                self._to.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


@asynccontextmanager
async def listening(engine: Engine, port: int = 0) -> AsyncIterator[str]:
    """The URL at which the engine's rows can be asked for."""
    async with await asyncio.get_running_loop().create_server(lambda: Connection(engine), "127.0.0.1", port) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def serve(engine: Engine, port: int) -> None:
    async with listening(engine, port) as url:
        print(f"ready on {url}", flush=True)
        await engine.run()


def outlive() -> None:
    """Return in a new child, again whenever one was killed; the parent never returns."""
    while child := os.fork():
        os.waitpid(child, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--outlive", action="store_true", help="serve anew on the port whenever the server is killed")
    args = parser.parse_args()
    if args.outlive:
        outlive()
    engine = Engine(args.slots, args.step_ms / 1000, args.blocks)
    uvloop.run(serve(engine, args.port))


if __name__ == "__main__":
    main()
