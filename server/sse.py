"""Server-sent events on an HTTP response: framing, keep-alive comments, and an end for readers that stand still.

It knows no format: events are structures that encode to JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType

import msgspec
from aiohttp import web

from server.service import Limits

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # proxies shall pass each event on at once
}
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


class EventStream:
    """One response's events. Entering it sends the headers; raises ConnectionError when the client is gone."""

    def __init__(self, request: web.Request, limits: Limits) -> None:
        self.response = web.StreamResponse(headers=HEADERS)
        self._request = request
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._last_write = self._loop.time()
        self._writing = False
        self._ticker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EventStream:
        await self.response.prepare(self._request)
        if self._limits.sse_keep_alive_interval > 0:
            self._ticker = asyncio.create_task(self._keep_alive(self._limits.sse_keep_alive_interval))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ticker is not None:
            self._ticker.cancel()

    async def send(self, events: Iterable[msgspec.Struct]) -> None:
        """Send what is ready now, in one write."""
        frames = b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in events)
        if frames:
            await self._write(frames)

    async def done(self) -> None:
        """Send the end marker, the last of every stream."""
        await self._write(DONE)

    async def _write(self, data: bytes) -> None:
        self._writing = True
        try:
            async with asyncio.timeout(self._limits.stall_timeout):
                await self.response.write(data)
        except TimeoutError:
            self._abort()
            raise ConnectionAbortedError("the client stopped reading its stream") from None
        finally:
            self._writing = False
            self._last_write = self._loop.time()

    def _abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()

    async def _keep_alive(self, interval: float) -> None:
        # When the write fails, the handler is being cancelled already.
        with suppress(ConnectionError):
            while True:
                silence = self._loop.time() - self._last_write
                if self._writing or silence < interval:
                    await asyncio.sleep(interval if self._writing else interval - silence)
                else:
                    await self._write(KEEP_ALIVE)
