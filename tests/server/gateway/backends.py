"""A backend that a test holds in its hand, and a gateway before it; both on loopback."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer

from scheduler.request_table import RequestTable
from scheduler.wait_estimate.speed import Holding, Made
from scheduler.worker import Worker
from server.access import Access, Quota
from server.composition.gateway import open_gateway
from server.config import GatewayConfig
from server.gateway.backend import Backend as Port
from server.http.front import Front
from server.http.service import Service, build_app
from server.keys import Keyring
from tests.server.live import Reply


class Listening(Protocol):
    def listening(self) -> AbstractAsyncContextManager[str]:
        """The URL at which it is asked."""


def event(index: int) -> bytes:
    """One token, with its white space as no JSON library of ours writes it."""
    return b'data: {"choices": [{"index": 0, "delta": {"content": "t%d"}}],  "n": %d}\n\n' % (index, index)


@dataclass(eq=False)
class Backend:
    """First come, first served in its slots; an answer's tokens behind the first wait for `go_on`."""

    slots: int = 2
    waits: bool = True
    """Whether tokens behind the first wait; else `go_on` is set from the beginning."""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0
    most: int = 0
    open: int = 0
    seen: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    usage: bool = False
    """Whether streams tell how they ended, and their usage where it is asked for."""
    break_off: bool = False
    """Whether connections are cut behind the first token."""
    refuses: bool = False
    """Whether connections are cut before any byte."""
    padding: bytes = b""
    """What comes behind each token but the first."""
    made: int = 0
    """Tokens that were sent."""

    def __post_init__(self) -> None:
        self._room = asyncio.Semaphore(self.slots)
        if not self.waits:
            self.go_on.set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        async with TestServer(self.app(), handler_cancellation=True) as server:
            yield str(server.make_url("/v1"))

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        app.router.add_get("/v1/models", self.models)
        return app

    async def models(self, request: web.Request) -> web.Response:
        if self.refuses:
            self._cut(request)
        return web.json_response({"data": [{"id": "their-model"}]}, headers={"x-theirs": "1"})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append(dict(request.headers))
        self.bodies.append(body)
        if self.refuses:
            self._cut(request)
        asked = orjson.loads(body)
        if status := asked.get("bad", asked.get("seed")):
            return web.json_response({"error": {"message": "theirs"}}, status=status)
        self.open += 1
        try:
            async with self._room:
                self.running += 1
                self.most = max(self.most, self.running)
                try:
                    return await self._generate(request, asked)
                finally:
                    self.running -= 1
        finally:
            self.open -= 1

    async def _generate(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        tokens = asked["max_tokens"]
        if not asked.get("stream"):
            await self.go_on.wait()
            return web.json_response({"id": "theirs", "usage": {"completion_tokens": tokens}})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event(0))
        if self.break_off:
            self._cut(request)
        await self.go_on.wait()
        for index in range(1, tokens):
            await response.write(event(index) + self.padding)
            self.made += 1
        if self.usage:
            end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
            usage = {"choices": [], "usage": {"completion_tokens": tokens}}
            await response.write(b"data: %b\n\ndata: %b\n\n" % (orjson.dumps(end), orjson.dumps(usage)))
        await response.write(b"data: [DONE]\n\n")
        return response

    def _cut(self, request: web.Request) -> None:
        assert request.transport is not None
        request.transport.abort()
        raise ConnectionResetError


@dataclass(frozen=True)
class Gateway:
    """A gateway under test, and a client of it."""

    service: Service
    client: aiohttp.ClientSession

    @property
    def table(self) -> RequestTable:
        return self.service.dispatcher.table

    @property
    def under_way(self) -> int:
        """Calls that have not ended."""
        return self.table.requests_waiting + self.table.requests_running

    @property
    def worker(self) -> Worker:
        """That of its only backend."""
        (worker,) = self.service.dispatcher.workers
        return worker

    @property
    def port(self) -> Port:
        assert isinstance(self.worker.port, Port)
        return self.worker.port

    def begin(self, count: int, **fields: Any) -> list[asyncio.Task[tuple[int, bytes]]]:
        """So many calls under way."""
        return [asyncio.create_task(self.ask(**fields)) for _ in range(count)]

    async def ask(self, **fields: Any) -> tuple[int, bytes]:
        async with self.client.post("/v1/chat/completions", json=chat(**fields)) as answer:
            return answer.status, await answer.read()

    def measure(self) -> None:
        """A speed, so that times can be told."""
        speed, now = self.service.dispatcher.waits._speed, self.service.dispatcher.now()
        speed.observe(Holding(1, 1), now - 1)
        speed.observe(Holding(), now, Made(100, 100.0))

    async def get(self, path: str) -> Any:
        return (await self.call("GET", path)).json

    async def read(self, path: str) -> bytes:
        return (await self.call("GET", path)).body

    async def post(self, path: str, body: object = None, **headers: str) -> Reply:
        return await self.call("POST", path, json=body, headers=headers)

    async def call(self, method: str, path: str, **given: Any) -> Reply:
        """A whole answer."""
        async with self.client.request(method, path, **given) as answer:
            return Reply(answer.status, answer.headers, await answer.read())


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Say it"}], "max_tokens": 5, "stream": True} | fields


@asynccontextmanager
async def gateway(*backends: Listening | str, keys: Sequence[str] = (), **settings: Any) -> AsyncIterator[Gateway]:
    """A gateway before these backends, which keeps no journal, with these keys for its clients."""
    async with AsyncExitStack() as stack:
        urls = [one if isinstance(one, str) else await stack.enter_async_context(one.listening()) for one in backends]
        config = GatewayConfig(backend=(*urls,), no_journal=True, **settings)
        service = await stack.enter_async_context(open_gateway(config))
        front, connector = Front(Access(Keyring(keys), Quota(config)), config), aiohttp.TCPConnector(limit=0)
        app = await stack.enter_async_context(TestServer(build_app(service, front), handler_cancellation=True))
        client = aiohttp.ClientSession(app.make_url("/"), connector=connector)
        yield Gateway(service, await stack.enter_async_context(client))


@asynccontextmanager
async def crowded(
    calls: int, *, stream: bool = True, **settings: Any
) -> AsyncIterator[tuple[Backend, Gateway, list[asyncio.Task[tuple[int, bytes]]]]]:
    """A backend with one slot, its gateway, and so many calls: the first runs, the others wait until the end."""
    backend = Backend(slots=1)
    async with gateway(backend, slots=1, **settings) as gate:
        asked = gate.begin(calls, stream=stream)
        await until(lambda: backend.running == 1 and gate.table.requests_waiting == calls - 1)
        yield backend, gate, asked
        backend.go_on.set()
        await asyncio.gather(*asked, return_exceptions=True)


async def until(condition: Any) -> None:
    """Wait until something is so; the event loop goes on meanwhile."""
    while not condition():
        await asyncio.sleep(0)
