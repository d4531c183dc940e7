"""Replies on their way to the client: whole ones, and server-sent events with their framing, keep-alives, comments
that tell a place in line, and an end for readers that stand still.

It knows no format: replies and events are structures that encode to JSON. Only clients that ask get comments: some lose
the event behind one.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias

import msgspec
from aiohttp import web

from scheduler.dispatcher import Dispatcher
from scheduler.request import Request
from scheduler.stream import Wakeups
from server.api.limits import Limits
from server.api.output.reply import LARGE, encode, json_response
from server.api.request_status import find_place
from server.api.served_model import MODEL

log = logging.getLogger(__name__)

Look: TypeAlias = Callable[[], Awaitable[float | None]]
"""Looks at a stream, and tells in how many seconds to look again; None: never."""

SENT: web.AppKey[Callable[[float], None]] = web.AppKey("sent")
"""Called with the seconds from a token's making until it was written."""

LOOKS = web.AppKey("looks", Wakeups)
"""Lets a few streams at a time be looked at: thousands that wait may be due in one instant."""


@contextmanager
def look_often(look: Look, first: float, turns: Wakeups) -> Iterator[None]:
    """Look after `first` seconds, and then as often as it says, until the context is left."""
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
        pass  # its handler is being cancelled already
    except Exception:
        log.exception("a stream could not be looked at")


HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # proxies shall pass each event on at once
}
KEEP_ALIVE = b"\n\n"
"""An event without content, which by the HTML standard is none. It is not a comment, because some clients, `vllm bench
serve` among them, trim each piece that arrives before they look for the blank line that ends an event: trimmed, a
comment runs into the event behind it, and both are lost. Of blank lines nothing is left."""
BACKLOG = 32 * 1024
"""Bytes that a client has left unread, at which nothing but events is added."""
DONE = b"data: [DONE]\n\n"


class EventStream:
    """One response's events. Entering it sends the headers; raises ConnectionError when the client is gone."""

    def __init__(
        self, request: web.Request, limits: Limits, sign: Callable[[], Sequence[msgspec.Struct]] = tuple
    ) -> None:
        """`sign` makes the events that break a silence; where there are none, a blank line does."""
        self.response = web.StreamResponse(headers=HEADERS)
        self._request = request
        self._limits = limits
        self._sign = sign
        self._framing = False  # whether events are made in a thread, of which no later one may be sent first
        self._loop = asyncio.get_running_loop()
        self._chunked = False  # whether each write is framed as a chunk of HTTP/1.1
        self._observe = request.app.get(SENT)
        self._writing = 0  # writes under way: a keep-alive can be overtaken by an event
        self._changed = self._loop.time()  # when the last write began or ended

    async def __aenter__(self) -> EventStream:
        await self.response.prepare(self._request)
        self._chunked = self.response.headers.get("Transfer-Encoding") == "chunked"
        intervals = [one for one in (self._limits.sse_keep_alive_interval, self._limits.send_timeout) if one]
        self._watch = asyncio.create_task(_look_often(self._attend, min(intervals), self._request.app[LOOKS]))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()

    async def send(self, events: Iterable[msgspec.Struct], weight: int = 0) -> None:
        """Send what is ready now, in one write; events of a large weight are made off the event loop."""
        self._framing = large = weight >= LARGE
        try:
            frames = await self._request.app[MODEL].run_in_thread(frame, events) if large else frame(events)
        finally:
            self._framing = False
        if frames:
            await self.forward(frames)

    def send_now(self, frames: bytes) -> bool:
        """Send what is framed already, in one write; False, and nothing is sent, where that might have to wait."""
        transport = self._request.transport
        if self._writing or not self._chunked or transport is None or transport.is_closing():
            return False
        if self._request.protocol.writing_paused:
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(frames), frames))
        self._changed = self._loop.time()
        return True

    async def forward(self, frames: bytes) -> None:
        """Send what is framed already; returns when the client's backlog is small enough."""
        self._note(1)
        try:
            await self.response.write(frames)
        finally:
            self._note(-1)

    def note_sent(self, made: float) -> None:
        """Tokens that were made at this time, in seconds of time.monotonic, have been written."""
        if self._observe is not None:
            self._observe(time.monotonic() - made)

    async def comment(self, text: str) -> None:
        """Send a line that is no event, to a client that has asked for such lines."""
        await self._write_between(lambda: b": %b\n\n" % text.encode())

    async def _write_between(self, make: Callable[[], bytes]) -> None:
        """Make and write data where that need not wait: neither while a write is under way, as then there is no
        silence to break, nor to a client that reads nothing, which its connection sees to."""
        transport = self._request.transport
        busy = self._writing or self._framing
        if not busy and transport is not None and transport.get_write_buffer_size() < BACKLOG:
            await self.forward(make())

    def _note(self, begun: int) -> None:
        self._writing += begun
        self._changed = self._loop.time()

    async def _attend(self) -> float | None:
        """Break a silence, or the connection of a client that stands still; a timeout per write would cost more."""
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
    """The bytes of events on the wire."""
    return b"".join(_kind(event) + b"data: %b\n\n" % encode(event) for event in events)


def _kind(event: msgspec.Struct) -> bytes:
    """The `event:` line of an event that has a type; those of OpenAI's older APIs have none."""
    kind = event.__struct_config__.tag or getattr(event, "type", None)
    return b"" if kind is None else b"event: %b\n" % str(kind).encode()


async def send_reply(request: web.Request, reply: msgspec.Struct, weight: int) -> web.StreamResponse:
    """Answer with a reply of that weight, whose JSON is made in a thread where it is large."""
    if weight < LARGE:
        return json_response(reply)
    return web.Response(body=await request.app[MODEL].run_in_thread(encode, reply), content_type="application/json")


HEADER = "x-lengthwise-progress"
"""Request header by which a client asks for progress in a stream, with the value 1."""

FIRST_LOOK = 0.1
"""Seconds before the first look: most requests start before that."""

REPEAT = 5
"""Looks after which a place is sent again though it is the same."""

_COMMENT = re.compile(r"queued place=(?P<place>\d+)(?: expected_wait_s=(?P<wait>\d+\.\d+))?")


@dataclass(frozen=True, slots=True)
class Progress:
    """A place in line, 1 for the next to start, and the expected wait in seconds, None where it is unknown."""

    place: int
    expected_wait_s: float | None

    def comment(self) -> str:
        """The text of the comment."""
        wait = "" if self.expected_wait_s is None else f" expected_wait_s={self.expected_wait_s:.1f}"
        return f"queued place={self.place}{wait}"


def progress_in(comment: str) -> Progress | None:
    """The progress that a comment tells; None for a comment of another kind."""
    found = _COMMENT.fullmatch(comment)
    if found is None:
        return None
    return Progress(int(found["place"]), None if found["wait"] is None else float(found["wait"]))


@dataclass(slots=True)
class PlaceNotes:
    """Tells a stream its place in line whenever that has changed, until the first of its requests starts."""

    stream: EventStream
    requests: Sequence[Request]
    dispatcher: Dispatcher
    interval: float
    """Seconds between two looks."""
    _sent: int | None = None
    _looks: int = 0

    async def look(self) -> float | None:
        """Look once; None when there is nothing to tell any more."""
        if any(request.times.started is not None or request.state.is_final for request in self.requests):
            return None
        place, wait = find_place(self.requests, self.dispatcher)
        if place is not None and (place != self._sent or self._looks >= REPEAT):
            await self.stream.comment(Progress(place, wait).comment())
            self._sent, self._looks = place, 0
        self._looks += 1
        return self.interval
