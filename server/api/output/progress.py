"""A waiting request's progress in line: how a client asks a stream for it, and the comments that tell it.

Only clients that ask get them: some clients lose the event behind a comment.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from scheduler.dispatcher import Dispatcher
from scheduler.request import Request
from server.api.calls.request_status import find_place
from server.api.output.sse import EventStream

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


@asynccontextmanager
async def send_places(
    stream: EventStream, requests: Sequence[Request], dispatcher: Dispatcher, interval: float
) -> AsyncIterator[None]:
    """Send the place in line whenever it has changed, until the first of the requests starts or the context is left.

    Looks every `interval` seconds.
    """
    task = asyncio.create_task(_send(stream, requests, dispatcher, interval))
    try:
        yield
    finally:
        task.cancel()


async def _send(stream: EventStream, requests: Sequence[Request], dispatcher: Dispatcher, interval: float) -> None:
    sent: int | None = None
    looks = 0
    await asyncio.sleep(min(FIRST_LOOK, interval))
    with suppress(ConnectionError):  # the handler is being cancelled already
        while not any(request.times.started is not None or request.state.is_final for request in requests):
            now = find_place(requests, dispatcher)
            if now.place is not None and (now.place != sent or looks >= REPEAT):
                await stream.comment(Progress(now.place, now.expected_wait_s).comment())
                sent, looks = now.place, 0
            looks += 1
            await asyncio.sleep(interval)
