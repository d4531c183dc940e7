"""A call between dispatcher, client and backend."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from engine.messages import FinishReason, RowId
from scheduler.request import Failure, Request
from server.api.errors import ApiError, failure_error
from server.api.output.sse import EventStream
from server.api.register import CANCELLED, Record
from server.gateway.backend import Backend, Waiting
from server.gateway.usage import LONGEST_NAME, SentResponse

RESPONSES = "/v1/responses"
GIVEN_UP = "the request was given up, or its backend is gone"
REASONS: Mapping[Failure | None, str] = {
    Failure.DEADLINE: "the deadline passed while the request waited",
    Failure.SHUTDOWN: "the gateway is shutting down",
}


@dataclass(eq=False, slots=True)
class ProxiedCall:
    admitted: asyncio.Future[Backend]
    request: Request
    record: Record
    asked: web.Request  # the client's
    asking: asyncio.Future[aiohttp.ClientResponse] | None = None  # pending response
    repeats: bool = True  # backends keep nothing of it, so it may be resent
    over: bool = False  # ended by the dispatcher
    as_stream: bytes | None = None  # body that streams a whole answer, or None
    early: EventStream | None = None  # to the client, begun before the backend's answer
    response: SentResponse = field(init=False)

    def __post_init__(self) -> None:
        """A gateway's own response until the backend's begins."""
        name = self.record.id.replace("call-", "resp_") if self.asked.path == RESPONSES else ""
        self.record.answer_id = name
        self.response = SentResponse(name, self.record.model[:LONGEST_NAME], int(time.time()))

    @property
    def streams(self) -> bool:
        """Starts long before it ends."""
        return self.record.stream or self.as_stream is not None

    def go(self, backend: Backend) -> None:
        tools = self.as_stream is not None and b'"tools"' in self.as_stream
        if not backend.merges or (tools and not backend.merges_tools):
            self.as_stream = None
        if not self.admitted.done():
            self.admitted.set_result(backend)

    def leave(self) -> None:
        """The backend sees its connection close."""
        if self.asking is None or self.asking.cancel() or self.asking.cancelled():
            return
        if self.asking.exception() is None:
            self.asking.result().close()

    def end(self) -> None:
        """The client gets the reason if nothing was sent."""
        self.over = True
        if not self.admitted.done():
            self.admitted.set_exception(self.failure())
        self.leave()

    def failure(self) -> ApiError:
        if self.record.cancelled:
            return ApiError(499, CANCELLED)
        return failure_error(self.request.failure, REASONS.get(self.request.failure, GIVEN_UP))


@dataclass(frozen=True, slots=True)
class ProxiedCalls:
    """By row; observes the scheduler's requests. Event loop only."""

    open: dict[RowId, Waiting] = field(default_factory=dict)

    def on_first_token(self, request: Request, now: float) -> None:
        return

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        passage = self.open.get(request.row_id)
        if isinstance(passage, ProxiedCall) and reason in (None, FinishReason.ERROR):
            passage.end()


PASSAGES = web.AppKey("passages", ProxiedCalls)
