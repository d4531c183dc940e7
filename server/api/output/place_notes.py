"""Comments in a stream that waits: its place in line and how long that is expected to take.

They are for clients that ask for them: some clients lose the event behind a comment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from scheduler.request import Request
from server.api.calls.request_status import Line, find_place
from server.api.output.progress import Progress
from server.api.output.sse import EventStream

FIRST_LOOK = 0.1
"""Seconds before the first look: most requests start before that."""

REPEAT = 5
"""Looks after which a place is sent again though it is the same."""


@asynccontextmanager
async def send_places(
    stream: EventStream, requests: Sequence[Request], line: Line, interval: float
) -> AsyncIterator[None]:
    """Send the place in line whenever it has changed, until the first of the requests starts or the context is left.

    Looks every `interval` seconds.
    """
    task = asyncio.create_task(_send(stream, requests, line, interval))
    try:
        yield
    finally:
        task.cancel()


async def _send(stream: EventStream, requests: Sequence[Request], line: Line, interval: float) -> None:
    sent: int | None = None
    looks = 0
    await asyncio.sleep(min(FIRST_LOOK, interval))
    with suppress(ConnectionError):  # the handler is being cancelled already
        while not any(request.times.started is not None or request.state.is_final for request in requests):
            now = find_place(requests, line)
            if now.place is not None and (now.place != sent or looks >= REPEAT):
                await stream.comment(Progress(now.place, now.expected_wait_s).comment())
                sent, looks = now.place, 0
            looks += 1
            await asyncio.sleep(interval)
