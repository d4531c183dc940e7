"""Server-sent events on an HTTP response: framing, keep-alives, and an end for readers that stand still.

It knows no format: events are structures that encode to JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType

import msgspec
from aiohttp import web

from server.api.limits import Limits
from server.api.output.reply import encode

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # proxies shall pass each event on at once
}
KEEP_ALIVE = b"\n\n"
"""An event without content, which by the HTML standard is none. It is not a comment, because some clients, `vllm bench
serve` among them, trim each piece that arrives before they look for the blank line that ends an event: trimmed, a
comment runs into the event behind it, and both are lost. Of blank lines nothing is left."""
DONE = b"data: [DONE]\n\n"


class NamedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event whose kind is told in the framing too, as an `event:` line."""

    type: str


class EventStream:
    """One response's events. Entering it sends the headers; raises ConnectionError when the client is gone."""

    def __init__(self, request: web.Request, limits: Limits) -> None:
        self.response = web.StreamResponse(headers=HEADERS)
        self._request = request
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._writing = 0  # writes under way: a keep-alive can be overtaken by an event
        self._changed = self._loop.time()  # when the last write began or ended
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EventStream:
        await self.response.prepare(self._request)
        self._watch = asyncio.create_task(self._keep_watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()

    async def send(self, events: Iterable[msgspec.Struct]) -> None:
        """Send what is ready now, in one write."""
        frames = b"".join(_frame(event) for event in events)
        if frames:
            await self._write(frames)

    async def forward(self, frames: bytes) -> None:
        """Send what is framed already."""
        await self._write(frames)

    async def comment(self, text: str) -> None:
        """Send a line that is no event, to a client that has asked for such lines."""
        await self._write_between(b": %b\n\n" % text.encode())

    async def done(self) -> None:
        """Send the end marker, the last of every stream."""
        await self._write(DONE)

    async def _write_between(self, data: bytes) -> None:
        """Not while a write is under way, as then there is no silence to break."""
        if not self._writing:
            await self._write(data)

    async def _write(self, data: bytes) -> None:
        """Returns when the client's backlog is small enough; what is too slow, the watch sees."""
        self._note(1)
        try:
            await self.response.write(data)
        finally:
            self._note(-1)

    def _note(self, begun: int) -> None:
        self._writing += begun
        self._changed = self._loop.time()

    async def _keep_watch(self) -> None:
        """Break silences, and the connection of a client that stands still; a timeout per write would cost more."""
        try:
            while True:
                await self._attend(self._loop.time() - self._changed)
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
        except ConnectionError:
            return  # the handler is being cancelled already

    async def _attend(self, unchanged: float) -> None:
        """One look at a stream that has not changed for so many seconds; raises TimeoutError when it is stalled."""
        interval, stall = self._limits.sse_keep_alive_interval, self._limits.send_timeout
        due = stall if self._writing or not interval else interval
        if unchanged < due:
            await asyncio.sleep(due - unchanged)
        elif self._writing:
            raise TimeoutError
        elif interval:
            async with asyncio.timeout(stall):
                await self._write_between(KEEP_ALIVE)
        else:
            await asyncio.sleep(stall)


def _frame(event: msgspec.Struct) -> bytes:
    name = b"event: %b\n" % event.type.encode() if isinstance(event, NamedEvent) else b""
    return b"%bdata: %b\n\n" % (name, encode(event))
