"""A real server on a free port of the loopback interface, and what tests ask of it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Final

import aiohttp
import orjson
from aiohttp import web
from multidict import CIMultiDictProxy

from server.access import Access, Quota
from server.config import ServeConfig
from server.front_settings import Admission
from server.http.front import OPEN, Front
from server.http.service import Service
from server.keys import Keyring
from server.process.life import listen
from tests.server.fakes import PlayedDispatcher, fake_service, played_dispatcher

CHAT: Final = "/v1/chat/completions"
COMPLETIONS, RESPONSES, MESSAGES = "/v1/completions", "/v1/responses", "/v1/messages"
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass(frozen=True, slots=True)
class Live:
    """A server that listens, the dispatcher behind it, and a client."""

    port: int
    service: Service
    dispatcher: PlayedDispatcher
    session: aiohttp.ClientSession
    app: web.Application

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """A whole answer. What is no JSON object or list is sent as it is; a header's name may have `_` for `-`."""
        data = orjson.dumps(body) if isinstance(body, dict | list) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, self.url + path, data=data, headers=named) as response:
            return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.ask("GET", path, **headers)

    async def post(self, path: str, body: object, **headers: str) -> tuple[int, Any]:
        """Status and JSON of a whole answer."""
        reply = await self.ask("POST", path, body, **headers)
        return reply.status, reply.json

    async def obtain(self, path: str, body: object, **headers: str) -> Any:
        """The JSON of a whole answer that must succeed."""
        status, reply = await self.post(path, body, **headers)
        assert status == 200, reply
        return reply

    async def refused(
        self,
        path: str,
        body: object,
        status: int = 400,
        *,
        code: str | None = None,
        param: str | None = None,
        said: str = "",
        **headers: str,
    ) -> dict[str, Any]:
        """The error of an answer that must be refused so, with these words in its message."""
        found, reply = await self.post(path, body, **headers)
        assert found == status, reply
        error: dict[str, Any] = reply["error"]
        assert code in (None, error.get("code")) and param in (None, error.get("param")), error
        assert said in error["message"], error
        return error

    async def begin(
        self, path: str, body: dict[str, Any], rows: int = 1, **headers: str
    ) -> asyncio.Task[tuple[int, Any]]:
        """A call under way, in a task of its own, once the dispatcher has so many rows of it."""
        wanted = len(self.dispatcher.submitted) + rows
        task = asyncio.create_task(self.post(path, body, **headers))
        await self.dispatcher.until(lambda: len(self.dispatcher.submitted) >= wanted)
        return task

    async def chat(self, **fields: object) -> Any:
        return await self.obtain("/v1/chat/completions", chat_body(**fields))

    async def complete(self, **fields: object) -> Any:
        return await self.obtain("/v1/completions", fields)

    @asynccontextmanager
    async def streaming(
        self, path: str, body: dict[str, Any], headers: Mapping[str, str] = NO_HEADERS
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """A streamed answer that has begun."""
        data = orjson.dumps(body | {"stream": True})
        async with self.session.post(self.url + path, data=data, headers=headers) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            yield response.content

    async def stream(self, path: str, body: dict[str, Any], headers: Mapping[str, str] = NO_HEADERS) -> list[Any]:
        """All events of a streamed answer, the end marker checked and left out."""
        async with self.streaming(path, body, headers) as content:
            return parse_events(await content.read())

    async def stream_named(self, path: str, body: dict[str, Any], headers: Mapping[str, str] = NO_HEADERS) -> list[Any]:
        """All events of a streamed answer whose events tell their kind; checks that the framing tells it too."""
        async with self.streaming(path, body, headers) as content:
            frames = (await content.read()).decode().split("\n\n")
        assert frames.pop() == ""
        events = []
        for frame in frames:
            kind, _, data = frame.partition("\n")
            events.append(orjson.loads(data.removeprefix("data: ")))
            assert kind == f"event: {events[-1]['type']}"
        return events

    async def stream_chat(self, **fields: object) -> list[Any]:
        return await self.stream("/v1/chat/completions", chat_body(**fields))

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A bare connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def exchange(self, sent: bytes) -> tuple[bytes, bytes]:
        """Head and body of what a bare connection gets until the server ends it."""
        async with self.connect() as (reader, writer):
            writer.write(sent)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return head, body


def bearer(key: str) -> dict[str, str]:
    """The header that a key comes in."""
    return {"Authorization": f"Bearer {key}"}


@asynccontextmanager
async def live_server(
    limits: ServeConfig | None = None,
    *,
    front: Front = OPEN,
    keys: Sequence[str] = (),
    admission: Admission | None = None,
    **fields: Any,
) -> AsyncIterator[Live]:
    """A server on a free port, with the process's own settings for connections; `fields` as `changed` has them."""
    port = socket.create_server(("127.0.0.1", 0))
    if keys or admission is not None:
        front = replace(front, access=Access(Keyring(keys), Quota(admission or Admission())))
    async with played_dispatcher() as dispatcher:
        service = changed(fake_service(dispatcher), fields if limits is None else {"limits": limits, **fields})
        with service.model.tokenizer_pool:
            async with listen(service, port, front) as app, aiohttp.ClientSession() as session:
                yield Live(port.getsockname()[1], service, dispatcher, session, app)


def changed(service: Service, values: dict[str, Any]) -> Service:
    """A service with other fields, which may be its own, its limits', its model's or those of answers' defaults."""
    values = dict(values)

    def replaced(part: Any, **more: Any) -> Any:
        own = {one.name: values.pop(one.name) for one in fields(part) if one.name in values}
        return replace(part, **more, **own)

    model = replaced(service.model, defaults=replaced(service.model.defaults))
    service = replaced(service, served_model=model)
    limits = replaced(values.pop("limits", service.limits))
    settings = limits if isinstance(limits, ServeConfig) else model.settings
    service = replace(service, limits=limits, served_model=replace(model, settings=settings))
    assert not values, f"no part of a service has {', '.join(values)}"
    return service


def chat_body(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "Hi"}], **fields}


def raw_post(path: str, body: dict[str, object]) -> bytes:
    """A request as it goes over the wire."""
    data = orjson.dumps(body)
    return b"POST %b HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(data), data)


def dechunk(raw: bytes) -> list[bytes]:
    """The chunks of a chunked HTTP body: each is one write of the server."""
    chunks = []
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        count = int(size, 16)
        assert raw[count : count + 2] == b"\r\n"
        chunks.append(raw[:count])
        raw = raw[count + 2 :]
    assert chunks.pop() == b""
    return chunks


def parse_events(raw: bytes) -> list[Any]:
    """The JSON of every event, comments and blank lines left out; checks the framing and the end marker."""
    assert raw.endswith(b"data: [DONE]\n\n")
    frames = [frame for frame in raw.decode().split("\n\n") if frame and not frame.startswith(":")]
    assert frames.pop() == "data: [DONE]"
    assert all(frame.startswith("data: {") and "\n" not in frame for frame in frames)
    return [orjson.loads(frame.removeprefix("data: ")) for frame in frames]


def text_of(events: list[Any], index: int = 0) -> str:
    """A choice's chat text over all its events."""
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def usage_of(prompt: int, completion: int) -> dict[str, object]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**counts, "prompt_tokens_details": {"cached_tokens": 0}}


def prompt_of(live: Live) -> str:
    """The latest."""
    return bytes(live.dispatcher.submitted[-1].prompt).decode()
