"""A backend's answer on its way to the client: the bytes as they came, or one whole answer that is made of a stream.

What has come of all answers is passed on every BURST seconds, each in one write: a task that wakes for each token would
cost as much as the token's way through both connections.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from server.api.errors import ApiError, error_body
from server.api.output.reply import encode
from server.gateway.backend import Backend
from server.gateway.merged import Merged
from server.gateway.passage import Passage
from server.http.proxy import replied_headers, without

BURST = 0.01
"""Seconds between two writes to a client, behind an answer's first bytes."""

BACKLOG = 64 * 1024
"""Bytes that a client has left unread, from which on its backend's are left unread too."""

TAIL = 4096
"""Bytes of an answer's end in which its token counts are looked for."""

COUNTED = re.compile(rb'"(?:completion_tokens|output_tokens)"\s*:\s*(\d+)')
EVENT = b"data: "
DONE = b"data: [DONE]"
EMPTY = 3
"""Events of a stream that may bring no token: with the role, the end, and the usage."""
OF_STREAMS = frozenset({"content-type", "cache-control", "x-accel-buffering"})
"""Headers of a stream that its whole answer does not have."""


DOUBTFUL = frozenset({200, 400, 422})
"""Statuses by which a backend may say that it has no such streams."""


class NotWhole(Exception):
    """An answer that was asked for as a stream is none from which the whole answer can be made."""


class Bursts:
    """Looks at the answers that are under way. Event loop only."""

    def __init__(self) -> None:
        self._looks: dict[int, Callable[[], None]] = {}
        self._due: asyncio.TimerHandle | None = None

    @contextmanager
    def follow(self, row: int, look: Callable[[], None]) -> Iterator[None]:
        """Look at a row's answer in each burst, until the context is left."""
        self._looks[row] = look
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(BURST, self._burst)
        try:
            yield
        finally:
            del self._looks[row]

    def _burst(self) -> None:
        for look in tuple(self._looks.values()):
            look()
        self._due = asyncio.get_running_loop().call_later(BURST, self._burst) if self._looks else None


BURSTS = web.AppKey("bursts", Bursts)


async def relay(
    request: web.Request, answer: aiohttp.ClientResponse, backend: Backend, passage: Passage
) -> web.StreamResponse:
    """Send the client what the backend answers. Raises NotWhole and aiohttp.ClientError before the first byte only."""
    streams = "event-stream" in answer.headers.get("Content-Type", "")
    if passage.as_stream is not None and (answer.status != 200 or not streams):
        if answer.status in DOUBTFUL:
            raise NotWhole
        passage.as_stream = None  # any other error is the call's own
    piece = await answer.content.readany()  # until here another backend may answer
    backend.begin(passage.request.row_id)
    way = _Relay(request, answer, backend, passage, streams)
    response = await (way.pass_on(piece) if passage.as_stream is None else way.merge(piece))
    await response.write_eof()
    return response


@dataclass(eq=False, slots=True)
class _Relay:
    """One answer on its way."""

    request: web.Request
    answer: aiohttp.ClientResponse
    backend: Backend
    passage: Passage
    streams: bool
    """Whether the backend sends it as a stream."""
    events: int = 0
    told: int = 0
    """Tokens that the backend's port was told of."""
    tail: bytes = b""

    async def pass_on(self, piece: bytes) -> web.StreamResponse:
        """Send the first piece at once, headers included, those behind it in bursts."""
        response = web.StreamResponse(status=self.answer.status, headers=replied_headers(self.answer.headers))
        if not self.streams:
            response.content_length = self.answer.content_length
        self._count(piece)
        try:
            await response.prepare(self.request)
            await response.write(piece)
            chunked, transport = response.headers.get("Transfer-Encoding") == "chunked", self.request.transport
            if transport is None:
                raise ConnectionResetError("the client is gone")
            await self._read_on(
                lambda piece: transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece),
                lambda: transport.get_write_buffer_size() < BACKLOG,
            )
            self._end(None if self.answer.status == 200 else f"status {self.answer.status}")
        except aiohttp.ClientError as error:
            over = self.passage.over
            fault = self.passage.failure() if over else ApiError(502, "the backend broke off", code="backend_failed")
            self._end(f"the backend broke off: {error}")
            await _break_off(response, fault, streams=self.streams)
        return response

    async def merge(self, piece: bytes) -> web.StreamResponse:
        """Make the whole answer of its stream; nothing is sent before. Raises NotWhole and aiohttp.ClientError."""
        merged = Merged()
        self._count(piece)
        try:
            merged.add(piece)
            await self._read_on(merged.add, lambda: True)
            whole = merged.whole()
        except (ValueError, LookupError, TypeError, AttributeError):  # its events are none of OpenAI's
            whole = None
        if whole is None:
            self.backend.merges &= merged.failed
            raise NotWhole
        self._end(None)
        headers = without(replied_headers(self.answer.headers), OF_STREAMS)
        response = web.Response(body=whole, headers=headers, content_type="application/json")
        await response.prepare(self.request)
        return response

    async def _read_on(self, take: Callable[[bytes], None], ready: Callable[[], bool]) -> None:
        """Give all that still comes to `take`, while it is ready for more. Raises aiohttp.ClientError."""
        content, over = self.answer.content, asyncio.get_running_loop().create_future()

        def look() -> None:
            if over.done() or not ready():
                return
            try:
                if piece := content.read_nowait():
                    self._count(piece)
                    take(piece)
                if content.at_eof():
                    over.set_result(None)
            except Exception as error:
                over.set_exception(error)

        content.on_eof(look)
        with self.request.app[BURSTS].follow(self.passage.request.row_id, look):
            await over

    def _count(self, piece: bytes) -> None:
        """Tell the port of tokens: of the first event at once, of those that may bring none only at the end."""
        self.tail = (self.tail + piece)[-TAIL:]
        if self.streams:
            self.events += piece.count(EVENT) - piece.count(DONE)
            more = self.events - self.told - EMPTY if self.told else min(1, self.events)
            if more > 0:
                self.backend.made(self.passage.request.row_id, more)
                self.told += more

    def _end(self, error: str | None) -> None:
        """Tell the port that the answer is over, and of the rest of its tokens, by its usage where that came."""
        counts = COUNTED.findall(self.tail)
        rest = max(0, (int(counts[-1]) if counts else self.events) - self.told)
        self.backend.end(self.passage.request.row_id, rest, error)


async def _break_off(response: web.StreamResponse, error: ApiError, *, streams: bool) -> None:
    """End an answer of which a part was sent: a stream by an event with the error, any other by closing."""
    if streams:
        with suppress(ConnectionError):
            await response.write(b"data: %b\n\ndata: [DONE]\n\n" % encode(error_body(error)))
            await response.write_eof()
    else:
        response.force_close()
        raise ConnectionResetError(error.message)
