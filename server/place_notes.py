"""Comments in a stream that waits: its place in line and how long that is expected to take.

Clients that read no comments pass them over, as they do keep-alives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from scheduler.request import Request
from server.request_status import Line, Standing, standing
from server.service import Limits
from server.sse import EventStream

PATIENCE = 0.1
"""Seconds before the first look: most requests start before that."""

REPEAT = 5
"""Looks after which a place is told again though it is the same."""


@asynccontextmanager
async def places_told(
    stream: EventStream, requests: Sequence[Request], line: Line, limits: Limits
) -> AsyncIterator[None]:
    """For as long as it lasts, until the first of the requests starts; nothing where comments are not wanted."""
    if not limits.sse_keep_alive_interval:
        yield
        return
    task = asyncio.create_task(_tell(stream, requests, line, limits.place_interval))
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
                await stream.comment(_wording(now))
                told, looks = now.place, 0
            looks += 1
            await asyncio.sleep(interval)


def _wording(now: Standing) -> str:
    wait = "" if now.expected_wait_s is None else f" expected_wait_s={now.expected_wait_s:.1f}"
    return f"queued place={now.place}{wait}"
