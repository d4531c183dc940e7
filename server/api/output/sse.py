"""Replies and server-sent events, with keep-alives, progress comments (some clients lose the event behind one), and
timeouts for stalled readers.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
from aiohttp import web

from scheduler.dispatcher import Dispatcher
from scheduler.request import Request
from scheduler.stream import Wakeups
from server.api.output.reply import LARGE, encode, expectation_of, json_response
from server.api.request_status import find_place
from server.api.served_model import MODEL
from server.config import FrontConfig

log = logging.getLogger(__name__)

Look: TypeAlias = Callable[[], Awaitable[float | None]]  # returns seconds until the next look, or None

SENT: web.AppKey[Callable[[float], None]] = web.AppKey("sent")  # seconds from a token's making until written

LOOKS = web.AppKey("looks", Wakeups)  # bounds concurrent looks: thousands may be due at once


@contextmanager
def look_often(look: Look, first: float, turns: Wakeups) -> Iterator[None]:
    """Inside the context, first after `first` seconds."""
    task = asyncio.create_task(_look_often(look, first, turns))
    try:
        yield
    finally:
        task.cancel()


async def _look_often(look: Look, first: float, turns: Wakeups) -> None:
    seconds: float | None = first
    try:
        while seconds is not None:
            await asyncio.sleep(seconds)
            await turns.turn()
            seconds = await look()
    except ConnectionError:
        pass  # already being cancelled
    except Exception:
        log.exception("a stream could not be looked at")


HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # no buffering in proxies
}
# blank lines, not a comment: clients such as `vllm bench serve` trim pieces, and would join a comment with the next
# event
KEEP_ALIVE = b"\n\n"
BACKLOG = 32 * 1024  # unread bytes beyond which keep-alives stop
DONE = b"data: [DONE]\n\n"


class EventStream:
    """Entering sends the headers; raises ConnectionError when the client is gone."""

    def __init__(
        self, request: web.Request, limits: FrontConfig, sign: Callable[[], Sequence[msgspec.Struct]] = tuple
    ) -> None:
        """`sign` makes keep-alive events instead of blank lines."""
        self.response = web.StreamResponse(headers=HEADERS)
        self._request = request
        self._limits = limits
        self._sign = sign
        self._framing = False  # events are being made in a thread; later ones must wait
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None  # of HTTP/1.1 chunks
        self._observe = request.app.get(SENT)
        self._writing = 0  # under way
        self._changed = self._loop.time()  # last write's begin or end

    async def __aenter__(self) -> "EventStream":
        await self.response.prepare(self._request)
        if self.response.headers.get("Transfer-Encoding") == "chunked":
            self._transport = self._request.transport
        intervals = [one for one in (self._limits.sse_keep_alive_interval, self._limits.send_timeout) if one]
        self._watch = asyncio.create_task(_look_often(self._attend, min(intervals), self._request.app[LOOKS]))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()

    async def send(self, events: Iterable[msgspec.Struct], weight: int = 0) -> None:
        """In one write; heavy events are made off the event loop."""
        self._framing = large = weight >= LARGE
        try:
            frames = await self._request.app[MODEL].run_in_thread(frame, events) if large else frame(events)
        finally:
            self._framing = False
        if frames:
            await self.forward(frames)

    def send_now(self, head: bytes, text: bytes, tail: bytes) -> bool:
        """One frame; false, and nothing is sent, where it might block."""
        transport = self._transport
        if self._writing or transport is None or transport.is_closing() or self._request.protocol.writing_paused:
            return False
        transport.write(b"%x\r\n%b%b%b\r\n" % (len(head) + len(text) + len(tail), head, text, tail))
        self._changed = self._loop.time()
        return True

    async def forward(self, frames: bytes) -> None:
        """Framed data; waits for the backlog."""
        self._writing, self._changed = self._writing + 1, self._loop.time()
        try:
            await self.response.write(frames)
        finally:
            self._writing, self._changed = self._writing - 1, self._loop.time()

    def note_sent(self, made: float) -> None:
        """Tokens made at this time (time.monotonic) were written."""
        if self._observe is not None:
            self._observe(time.monotonic() - made)

    async def comment(self, text: str) -> None:
        """For clients that asked."""
        await self._write_between(lambda: b": %b\n\n" % text.encode())

    def hand_over(self) -> web.StreamResponse:
        """To another writer; nothing more is written between its events."""
        self._framing = True
        return self.response

    async def _write_between(self, make: Callable[[], bytes]) -> None:
        """Only if it need not wait: not during a write, nor to a stalled client."""
        transport = self._request.transport
        busy = self._writing or self._framing
        if not busy and transport is not None and transport.get_write_buffer_size() < BACKLOG:
            await self.forward(make())

    async def _attend(self) -> float | None:
        """Keep-alive, or the end of a stalled connection; cheaper than a timeout for each write."""
        interval, stall = self._limits.sse_keep_alive_interval, self._limits.send_timeout
        due = stall if self._writing or not interval else interval
        unchanged = self._loop.time() - self._changed
        if unchanged < due:
            return due - unchanged
        if self._writing:
            if self._request.transport is not None:
                self._request.transport.abort()
            return None
        if interval:
            await self._write_between(lambda: frame(self._sign()) or KEEP_ALIVE)
        return interval or stall


def frame(events: Iterable[msgspec.Struct]) -> bytes:
    return b"".join(_kind(event) + b"data: %b\n\n" % encode(event) for event in events)


def _kind(event: msgspec.Struct) -> bytes:
    """None for OpenAI's older APIs."""
    kind = event.__struct_config__.tag or getattr(event, "type", None)
    return b"" if kind is None else b"event: %b\n" % str(kind).encode()


async def send_reply(request: web.Request, reply: msgspec.Struct, weight: int) -> web.StreamResponse:
    """Large JSON is made in a thread."""
    if weight < LARGE:
        return json_response(reply)
    return web.Response(body=await request.app[MODEL].run_in_thread(encode, reply), content_type="application/json")


HEADER = "x-lengthwise-progress"  # request header that asks for progress, with the value 1

FIRST_LOOK = 0.1  # seconds; most requests start before
PLACE_INTERVAL = 1.0  # seconds between later looks

REPEAT = 5  # looks before an unchanged place is repeated

_COMMENT = re.compile(r"queued place=(?P<place>\d+)(?: expected_wait_s=(?P<wait>\d+\.\d+))?(?: by=(?P<by>\S+))?")


@dataclass(frozen=True, slots=True)
class Progress:
    """Place, 1 for the next, and expected wait in seconds."""

    place: int
    expected_wait_s: float | None
    by: str | None = None  # promised

    def comment(self) -> str:
        wait = "" if self.expected_wait_s is None else f" expected_wait_s={self.expected_wait_s:.1f}"
        return f"queued place={self.place}{wait}{'' if self.by is None else f' by={self.by}'}"


def progress_in(comment: str) -> Progress | None:
    """None for another kind of comment."""
    found = _COMMENT.fullmatch(comment)
    if found is None:
        return None
    return Progress(int(found["place"]), None if found["wait"] is None else float(found["wait"]), found["by"])


@dataclass(slots=True)
class PlaceNotes:
    """Until the first of its requests starts."""

    stream: EventStream
    requests: Sequence[Request]
    dispatcher: Dispatcher
    _sent: int | None = None
    _looks: int = 0

    async def look(self) -> float | None:
        """None when done."""
        if any(request.times.started is not None or request.state.is_final for request in self.requests):
            return None
        place, wait = find_place(self.requests, self.dispatcher)
        asked = [request for request in self.requests if request.promised is not None]
        nearer = any([self.dispatcher.waits.tell_again(request) for request in asked])
        if place is not None and (nearer or place != self._sent or self._looks >= REPEAT):
            by = expectation_of(self.requests, self.dispatcher.now()).by
            await self.stream.comment(Progress(place, wait, by).comment())
            self._sent, self._looks = place, 0
        self._looks += 1
        return PLACE_INTERVAL
