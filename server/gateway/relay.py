"""Forwards a backend's answer, as bytes or merged. The receiving connection forwards pieces
directly: waking a task for each token would double the cost.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from server.api.errors import ApiError, note_code
from server.api.input.program import PROGRAMS
from server.gateway.asking import BACKENDS
from server.gateway.backend import Backend
from server.gateway.events import brings
from server.gateway.last_events import error_events, last_events
from server.gateway.merged import StreamAggregator
from server.gateway.passage import RESPONSES, ProxiedCall
from server.gateway.usage import LIMITED, LONGEST_NAME, read_end
from server.http.proxy import replied_headers, without

PIECES = 64  # last pieces searched for usage
EVENT = b"data: "
DONE = b"data: [DONE]"
EMPTY = 3  # last events without tokens: end, usage, [DONE]
LONGEST = 2**16  # bytes examined of an event
BROKE_OFF = "the backend broke off; try again later"  # opencode looks for such words
OF_STREAMS = frozenset({"content-type", "cache-control", "x-accel-buffering"})  # headers of streams only


DOUBTFUL = frozenset({200, 400, 422})  # statuses that may mean that streams are unsupported


class NotWhole(Exception):
    """The stream does not make a whole answer."""


def has_left(request: web.Request) -> bool:
    """Writing to its client raises what a broken backend raises."""
    return request.transport is None or request.transport.is_closing()


def broke_off() -> ApiError:
    return ApiError(502, BROKE_OFF, code="backend_failed")


def cut_off(request: web.Request, error: ApiError, *, whole: bool) -> None:
    """Behind an answer's first byte; of a `whole` one only its connection's end shows that it is none. Raises
    ConnectionResetError where its client has left.
    """
    if has_left(request):
        raise ConnectionResetError("the client is gone")
    note_code(request, error)
    if whole and request.transport is not None:
        request.transport.close()


async def relay(
    answer: aiohttp.ClientResponse, piece: bytes, backend: Backend, passage: ProxiedCall, limit: asyncio.Timeout
) -> web.StreamResponse:
    """The first `piece` was waited for within `limit`. Raises NotWhole, TimeoutError and
    aiohttp.ClientError before it only."""
    streams = "event-stream" in answer.headers.get("Content-Type", "")
    if passage.as_stream is not None and (answer.status != 200 or not streams):
        if answer.status in DOUBTFUL:
            raise NotWhole
        passage.as_stream = None  # other errors are the call's own
    limit.reschedule(None)
    way = _Relay(passage.asked, answer, backend, passage, streams, passage.asked.protocol, answer.content.at_eof())
    way.take(piece)
    if passage.early is not None and (answer.status != 200 or not streams):
        response = await way.report()
    elif passage.as_stream is not None:
        response = await way.merge(piece)
    else:
        response = await way.pass_on(piece)
    with suppress(ConnectionError):  # the answer is over
        await response.write_eof()
    return response


class _Response(web.StreamResponse):
    _send_headers_immediately = False  # but with the first piece


class _Shortcut(aiohttp.StreamReader):
    """Forwards what comes in one read at once, without waking the relay's task."""

    __slots__ = ()

    def feed_data(self, data: bytes, size: int = 0) -> bool:
        relay: _Relay = vars(self._protocol)["relay"]
        if self._waiter is None or relay.client.writing_paused:
            return super().feed_data(data, size)
        if not relay.held:
            asyncio.get_running_loop().call_soon(relay.flush)
        relay.held.append(data)
        return False


@dataclass(eq=False, slots=True)
class _Relay:
    request: web.Request
    answer: aiohttp.ClientResponse
    backend: Backend
    passage: ProxiedCall
    streams: bool  # sent as a stream
    client: web.RequestHandler
    whole: bool  # came in one piece
    size: int = 0
    begun: bool = False  # first content has come
    line: bytes = b""  # events without content so far
    events: int = 0  # since then
    told: int = 0  # tokens reported
    tail: deque[bytes] = field(default_factory=lambda: deque(maxlen=PIECES))
    put: Callable[[bytes], object] = bytes  # forwards pieces after the first
    chunked: bool = False  # HTTP chunks
    held: list[bytes] = field(default_factory=list)  # of the read under way
    heard: float = field(default_factory=time.monotonic)
    due: asyncio.TimerHandle | None = None

    async def pass_on(self, piece: bytes) -> web.StreamResponse:
        """Headers with the first piece, unless sent."""
        if self.passage.early is not None:
            response = self.passage.early.hand_over()
        else:
            response = _Response(status=self.answer.status, headers=replied_headers(self.answer.headers))
        if not self.streams:
            response.content_length = self.answer.content_length
        try:
            await response.prepare(self.request)
            if not self.whole:
                await response.write(piece)
                self.chunked, transport = response.headers.get("Transfer-Encoding") == "chunked", self.request.transport
                if transport is None:
                    raise ConnectionResetError("the client is gone")
                self.put = transport.write
                piece = await self._read_on()
            with suppress(ConnectionError):
                await response.write_eof(piece)
            self._end(None if self.answer.status == 200 else f"status {self.answer.status}")
        except aiohttp.ClientError as error:
            over, gone = self.passage.over, has_left(self.request)
            fault = self.passage.failure() if over else broke_off()
            self._end(f"{'the client' if gone else 'the backend'} broke off: {error}", broken=not (over or gone))
            await self._break_off(response, fault)
        return response

    async def _break_off(self, response: web.StreamResponse, error: ApiError) -> None:
        cut_off(self.request, error, whole=not self.streams)
        if self.streams and DONE not in (tail := b"".join(self.tail)):
            blank = b"" if tail.endswith((b"\n\n", b"\r\n\r\n")) else b"\n\n"  # ends half an event
            with suppress(ConnectionError):
                await response.write(blank + last_events(self.passage, error))

    async def report(self) -> web.StreamResponse:
        """An answer that is no stream, as the end of one. Raises aiohttp.ClientError before anything is sent."""
        assert self.passage.early is not None
        await self._read_on()
        body, status = b"".join(self.tail), self.answer.status
        self._end(f"status {status}")
        note_code(self.request, ApiError(status, "", code=None if 400 <= status < 500 else "backend_failed"))
        response = self.passage.early.hand_over()
        await response.write(error_events(self.passage, status, body))
        return response

    async def merge(self, piece: bytes) -> web.StreamResponse:
        """Raises NotWhole and aiohttp.ClientError before anything is sent."""
        merged = StreamAggregator()
        self.put = merged.add
        merged.add(piece)
        try:
            merged.add(await self._read_on())
            if (whole := merged.whole()) is None:
                self.backend.merges &= merged.failed or merged.doubtful
                self.backend.merges_tools &= not merged.doubtful
                raise NotWhole
        except (NotWhole, aiohttp.ClientError):
            self.passage.request.generated -= self.told  # it begins again
            raise
        self._end(None)
        headers = without(replied_headers(self.answer.headers), OF_STREAMS)
        response = web.Response(body=whole, headers=headers, content_type="application/json")
        await response.prepare(self.request)
        return response

    def take(self, piece: bytes) -> None:
        self._note(piece)
        self.put(b"%x\r\n%b\r\n" % (len(piece), piece) if self.chunked else piece)

    def flush(self) -> None:
        if not self.answer.content.at_eof():
            self.take(self._let_go())

    def _let_go(self) -> bytes:
        piece = b"".join(self.held)
        self.held.clear()
        return piece

    def _note(self, piece: bytes) -> None:
        self.heard = time.monotonic()
        self.tail.append(piece)
        self.size += len(piece)
        if self.begun:
            self.events += piece.count(EVENT)
        elif self.answer.status == 200:
            self._look(piece)

    def _look(self, piece: bytes) -> None:
        piece = self.line + piece
        lines = piece.split(b"\n")
        if b'"id"' in piece:
            self.passage.response.read(lines[:-1])
            self.passage.record.answer_id = self.passage.response.id
        first = next((place for place, line in enumerate(lines[:-1]) if brings(line)), None)
        self.line = lines[-1]
        if first is not None or not self.streams or len(self.line) > LONGEST:
            self.begun, self.line = True, b""
            self.events = b"\n".join(lines[first or 0 :]).count(EVENT)
            self.backend.begin(self.passage.request.row_id, self.count, whole=self.whole)

    async def _read_on(self) -> bytes:
        """With backpressure; returns the last bytes, to be put with the end."""
        content, connection = self.answer.content, self.answer.connection
        if connection is not None:  # otherwise complete
            vars(connection.protocol)["relay"] = self
            content.__class__ = _Shortcut
            if idle := self.request.app[BACKENDS].idle_timeout:
                self._watch(idle)
        try:
            while piece := await content.readany():
                self.take(piece)
                await self.request.writer.drain()
                self.heard = time.monotonic()
        finally:
            if self.due is not None:
                self.due.cancel()
        self._note(piece := self._let_go())
        return piece

    def _watch(self, idle: float) -> None:
        """One timer: to set one for each piece took a tenth of a stream's CPU time."""
        left = self.heard + idle - time.monotonic()
        if left <= 0 and not self.client.writing_paused:
            self.answer.content.set_exception(aiohttp.SocketTimeoutError("the backend is silent"))
        else:
            self.due = asyncio.get_running_loop().call_later(left if left > 0 else idle, self._watch, idle)

    def count(self) -> int:
        """Since the last call; possibly empty last events count at the end only."""
        more = max(0, self.events - self.told - EMPTY if self.told else min(1, self.events)) if self.streams else 0
        self.told += more
        return more

    def _end(self, error: str | None, *, broken: bool = False) -> None:
        """Report the remaining tokens, by usage if known, bounded by the call's limit and the bytes."""
        if (error is None or broken) and self.backend.health.note_end(broken=broken):
            self.backend.rest("breaks off its answers")
        tail, request, passage = b"".join(self.tail), self.passage.request, self.passage
        end = read_end(tail, streams=self.streams)
        stated = end.tokens if self.answer.status == 200 else None
        counted = self.streams * max(0, self.events - tail.count(DONE))
        made = counted if stated is None else min(stated, max(request.sampling.max_tokens, self.size))
        if self.streams and self.begun and (error is None or DONE in tail):
            self.backend.note_end(request.row_id, finished=end.finished)
        passage.record.answer_id = next(iter(end.ids), "")[:LONGEST_NAME] or passage.response.id
        if end.number is not None:
            passage.response.number = end.number
        if self.request.path == RESPONSES and (program := passage.record.program) is not None:
            self.request.app[PROGRAMS].mark(passage.record.client, program, end.ids)
        if 400 <= self.answer.status < 500:
            request.expected = None  # a call that is refused breaks no promise
        if error is None and end.reasons & {"error", "abort"}:
            error = "the backend tells of an error"
            note_code(self.request, broke_off())
        begun = self.begun and self.whole
        limited = bool(end.reasons & LIMITED) if end.reasons else made >= request.sampling.max_tokens
        self.backend.end(request.row_id, max(0, made - self.told), error, limited=limited, begun=begun)
