"""Comments in a stream that waits: its place in line and how long that is expected to take.

They are for clients that ask for them: some clients lose the event behind a comment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from scheduler.request import Request
from server.api.calls.request_status import Line, standing
from server.api.output.progress import Progress
from server.api.output.sse import EventStream

PATIENCE = 0.1
"""Seconds before the first look: most requests start before that."""

REPEAT = 5
"""Looks after which a place is told again though it is the same."""


@asynccontextmanager
async def places_told(
    stream: EventStream, requests: Sequence[Request], line: Line, interval: float
) -> AsyncIterator[None]:
    """For as long as it lasts, until the first of the requests starts; a look every `interval` seconds."""
    task = asyncio.create_task(_tell(stream, requests, line, interval))
    try:
        yield
    finally:
        task.cancel()


async def _tell(stream: EventStream, requests: Sequence[Request], line: Line, interval: float) -> None:
    told: int | None = None
    looks = 0
    await asyncio.sleep(min(PATIENCE, interval))
    with suppress(ConnectionError):  # the handler is being cancelled already
        while not any(request.times.started is not None or request.state.is_final for request in requests):
            now = standing(requests, line)
            if now.place is not None and (now.place != told or looks >= REPEAT):
                await stream.comment(Progress(now.place, now.expected_wait_s).comment())
                told, looks = now.place, 0
            looks += 1
            await asyncio.sleep(interval)
