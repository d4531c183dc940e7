"""A waiting request's progress in line: how a client asks a stream for it, and the comments that tell it.

Only clients that ask get them: some clients lose the event behind a comment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from scheduler.dispatcher import Dispatcher
from scheduler.request import Request
from server.api.calls.request_status import find_place
from server.api.errors import bad_request
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


def is_asked(request: web.Request, header: str) -> bool:
    """Whether a client asks for what a header names; raises ApiError 400."""
    asked = request.headers.get(header, "0")
    if asked not in ("0", "1"):
        raise bad_request(f"{header}: must be 0 or 1, not {asked[:200]!r}", header)
    return asked == "1"


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
        now = find_place(self.requests, self.dispatcher)
        if now.place is not None and (now.place != self._sent or self._looks >= REPEAT):
            await self.stream.comment(Progress(now.place, now.expected_wait_s).comment())
            self._sent, self._looks = now.place, 0
        self._looks += 1
        return self.interval
