"""A backend's answer on its way to the client: the bytes as they came, or one whole answer that is made of a stream.

What has come of all answers is passed on every BURST seconds, each in one write: a task that wakes for each token would
cost as much as the token's way through both connections.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

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


class Counter:
    """The tokens of an answer: its events, and where it tells its usage exactly as many as that."""

    def __init__(self, backend: Backend, row: int, *, streams: bool) -> None:
        self._backend, self._row, self._streams = backend, row, streams
        self._events = self._told = 0
        self._tail = b""

    def add(self, piece: bytes) -> None:
        """More bytes of the answer."""
        self._tail = (self._tail + piece)[-TAIL:]
        if self._streams:
            self._events += piece.count(EVENT) - piece.count(DONE)
            more = self._events - self._told - EMPTY if self._told else min(1, self._events)
            if more > 0:
                self._backend.made(self._row, more)
                self._told += more

    @property
    def rest(self) -> int:
        """Tokens that have not been told to the backend's port, once the answer is over."""
        counts = COUNTED.findall(self._tail)
        return max(0, (int(counts[-1]) if counts else self._events) - self._told)


async def relay(
    request: web.Request, answer: aiohttp.ClientResponse, backend: Backend, passage: Passage
) -> web.StreamResponse:
    """Send the client what the backend answers. Raises NotWhole and aiohttp.ClientError before the first byte only."""
    row, streams = passage.request.row_id, "event-stream" in answer.headers.get("Content-Type", "")
    if passage.as_stream is not None and (answer.status != 200 or not streams):
        if answer.status in DOUBTFUL:
            raise NotWhole
        passage.as_stream = None  # any other error is the call's own
    piece = await answer.content.readany()  # until here another backend may answer
    backend.begin(row)
    counter = Counter(backend, row, streams=streams)
    if passage.as_stream is not None:
        response = await _merge(request, answer, piece, backend, passage, counter)
    else:
        response = web.StreamResponse(status=answer.status, headers=replied_headers(answer.headers))
        if not streams:
            response.content_length = answer.content_length
        try:
            await _pass_on(request, answer, piece, response, passage, counter)
        except aiohttp.ClientError as error:
            fault = passage.failure() if passage.over else ApiError(502, "the backend broke off", code="backend_failed")
            backend.end(row, 0, f"the backend broke off: {error}")
            await _break_off(response, fault, streams=streams)
            return response
    backend.end(row, counter.rest, None if answer.status == 200 else f"status {answer.status}")
    await response.write_eof()
    return response


async def _pass_on(
    request: web.Request,
    answer: aiohttp.ClientResponse,
    piece: bytes,
    response: web.StreamResponse,
    passage: Passage,
    counter: Counter,
) -> None:
    """The first piece is on its way at once, headers included, those behind it in bursts."""
    counter.add(piece)
    await response.prepare(request)
    await response.write(piece)
    chunked, transport = response.headers.get("Transfer-Encoding") == "chunked", request.transport
    if transport is None:
        raise ConnectionResetError("the client is gone")

    def write(piece: bytes) -> None:
        counter.add(piece)
        transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)

    await _read_on(request, answer, passage, write, lambda: transport.get_write_buffer_size() < BACKLOG)


async def _merge(
    request: web.Request,
    answer: aiohttp.ClientResponse,
    piece: bytes,
    backend: Backend,
    passage: Passage,
    counter: Counter,
) -> web.StreamResponse:
    """The whole answer of a stream; nothing is sent before. Raises NotWhole and aiohttp.ClientError."""
    merged = Merged()

    def take(piece: bytes) -> None:
        counter.add(piece)
        merged.add(piece)

    try:
        take(piece)
        await _read_on(request, answer, passage, take, lambda: True)
        whole = merged.whole()
    except (ValueError, LookupError, TypeError, AttributeError):
        backend.merges, whole = False, None
    if whole is None:
        backend.merges &= merged.failed
        raise NotWhole
    headers = without(replied_headers(answer.headers), OF_STREAMS)
    response = web.Response(body=whole, headers=headers, content_type="application/json")
    await response.prepare(request)
    return response


async def _read_on(
    request: web.Request,
    answer: aiohttp.ClientResponse,
    passage: Passage,
    take: Callable[[bytes], None],
    ready: Callable[[], bool],
) -> None:
    """Give all that still comes of an answer to `take`, while it is ready for more. Raises aiohttp.ClientError."""
    content, over = answer.content, asyncio.get_running_loop().create_future()

    def look() -> None:
        if over.done() or not ready():
            return
        try:
            if piece := content.read_nowait():
                take(piece)
            if content.at_eof():
                over.set_result(None)
        except Exception as error:
            over.set_exception(error)

    content.on_eof(look)
    with request.app[BURSTS].follow(passage.request.row_id, look):
        await over


async def _break_off(response: web.StreamResponse, error: ApiError, *, streams: bool) -> None:
    """End an answer of which a part was sent: a stream by an event with the error, any other by closing."""
    if streams:
        with suppress(ConnectionError):
            await response.write(b"data: %b\n\ndata: [DONE]\n\n" % encode(error_body(error)))
            await response.write_eof()
    else:
        response.force_close()
        raise ConnectionResetError(error.message)
