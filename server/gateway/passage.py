"""A client's call under way, between the dispatcher that admits or ends it and its connection to a backend."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from engine.messages import FinishReason, RowId
from scheduler.request import Request
from server.api.errors import ApiError, failure_error
from server.api.register import Record
from server.gateway.backend import Backend, Waiting


@dataclass(eq=False, slots=True)
class Passage:
    """A call under way: where it may go, and its connection to there."""

    admitted: asyncio.Future[Backend]
    request: Request
    record: Record
    asking: asyncio.Future[aiohttp.ClientResponse] | None = None
    """The backend's answer, whose headers may not have come yet."""
    over: bool = False
    """Whether the dispatcher has ended it."""
    as_stream: bytes | None = None
    """The body that asks for its whole answer as a stream; None where it is asked for as it came."""

    @property
    def streams(self) -> bool:
        """Whether the first byte of its answer comes long before the last."""
        return self.record.stream or self.as_stream is not None

    @property
    def client(self) -> str:
        """Who is served by it."""
        return self.request.client

    def go(self, backend: Backend) -> None:
        """Send it to this backend."""
        tools = self.as_stream is not None and b'"tools"' in self.as_stream
        if not backend.merges or (tools and not backend.merges_tools):
            self.as_stream = None
        if not self.admitted.done():
            self.admitted.set_result(backend)

    def leave(self) -> None:
        """Break it off: the backend sees its connection close."""
        if self.asking is None:
            return
        if self.asking.done():
            if not self.asking.cancelled() and self.asking.exception() is None:
                self.asking.result().close()
        else:
            self.asking.cancel()

    def end(self) -> None:
        """The dispatcher is done with it; if nothing was sent, its client gets the reason."""
        self.over = True
        if not self.admitted.done():
            self.admitted.set_exception(self.failure())
        self.leave()

    def failure(self) -> ApiError:
        """The error of a call that was ended from this side."""
        with suppress(ApiError):
            self.record.check()
            return failure_error(self.request.failure, "the request was given up, or its backend is gone")
        return ApiError(499, "the request was cancelled by its id")


@dataclass(frozen=True, slots=True)
class Passages:
    """All calls under way, by their rows; an observer of the scheduler's requests. Event loop only."""

    open: dict[RowId, Waiting] = field(default_factory=dict)

    def on_first_token(self, request: Request, now: float) -> None:
        return

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        """Break off what has not come to its own end."""
        passage = self.open.get(request.row_id)
        if isinstance(passage, Passage) and reason in (None, FinishReason.ERROR):
            passage.end()


PASSAGES = web.AppKey("passages", Passages)
