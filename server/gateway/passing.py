"""A client's call on its way through the gateway: read, queued, sent to a backend, and its answer passed back.

Bytes are passed on as they came, both ways. Nothing is sent to the client before the backend answers, so a call whose
backend fails goes to another as long as no byte of its answer has come.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from engine.messages import FinishReason, RowId
from engine.sampling.params import SamplingParams
from scheduler.length.features import LengthQuery
from scheduler.length.prediction import Prediction
from scheduler.request import Refused, Request, TooLate
from server.api.calls.register import CALL, REGISTER, Caller, Record
from server.api.errors import ApiError, busy, error_body, failure_error
from server.api.generator import DISPATCHER, LENGTHS
from server.api.input.body import hold_body
from server.api.limits import LIMITS
from server.api.output.expectation import SHORT_FORM, expectation_of, headers_of
from server.api.output.reply import encode
from server.api.output.wanted import length_scope
from server.api.ticket import TICKET, check_tokens
from server.gateway.backend import Backend, Waiting
from server.gateway.meta import CallMeta, read_deadline, read_meta, read_priority
from server.http.access import client_of, holder_of, spend_tokens
from server.http.proxy import passed_headers, replied_headers
from server.http.request_id import request_id

MOST_LOST = 5
"""Times that a call may meet a backend that breaks off before its answer: it could be what kills them."""

UNSTATED = 4096
"""Tokens that an answer may have where its call does not say."""

TAIL = 4096
"""Bytes of an answer's end in which its token counts are looked for."""

COUNTED = re.compile(rb'"(?:completion_tokens|output_tokens)"\s*:\s*(\d+)')
EVENT = b"data: "
DONE = b"data: [DONE]"


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

    @property
    def streams(self) -> bool:
        """Whether the first byte of its answer comes long before the last."""
        return self.record.stream

    def go(self, backend: Backend) -> None:
        """Send it to this backend."""
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
SESSION = web.AppKey("session", aiohttp.ClientSession)


async def pass_call(request: web.Request) -> web.StreamResponse:
    """Answer a call by a backend, once its turn has come; raises ApiError 400, 408, 413, 429, 499, 502, 503 or 504."""
    async with hold_body(request) as body:
        return await _queue(request, body)


async def _queue(request: web.Request, body: bytes) -> web.StreamResponse:
    app, ticket = request.app, request[TICKET]
    ticket.count_body()
    meta = read_meta(body)
    ticket.count_answers(meta.choices)
    record = _record(request, meta)
    request[CALL] = record.id
    holder = record.caller.holder
    with app[REGISTER].enter(record):
        most = (meta.most or UNSTATED) * meta.choices
        query = LengthQuery("", "", meta.prompt_tokens, most, meta.words(), length_scope(holder, None))
        sampling = SamplingParams(max_tokens=most)
        prediction = await app[LENGTHS].predict(query, sampling)
        record.check()
        expected = most if prediction is None else min(most, int(prediction.length))
        check_tokens(meta.prompt_tokens + expected, app[LIMITS], app[DISPATCHER])
        with _submitted(request, meta, record, sampling, prediction) as passage:
            app[LENGTHS].note(passage.request, query, prediction, app[DISPATCHER].revise)
            ticket.settle()
            request[SHORT_FORM] = headers_of(expectation_of((passage.request,)))
            spend_tokens(app, holder, meta.prompt_tokens)
            try:
                return await _serve(request, body, passage)
            finally:
                spend_tokens(app, holder, passage.request.generated)


def _record(request: web.Request, meta: CallMeta) -> Record:
    now = request.app[DISPATCHER].now()
    return Record(
        f"call-{secrets.token_hex(16)}",
        Caller(holder_of(request), request_id(request)),
        request.path,
        meta.model if isinstance(meta.model, str) else "",
        int(time.time()),
        meta.stream is True,
        now,
        client=client_of(request, meta.user if isinstance(meta.user, str) else None),
    )


@contextmanager
def _submitted(
    request: web.Request, meta: CallMeta, record: Record, sampling: SamplingParams, prediction: Prediction | None
) -> Iterator[Passage]:
    """A call in the queue; on leaving, it is cancelled unless it has ended. Raises ApiError."""
    dispatcher, passages = request.app[DISPATCHER], request.app[PASSAGES]
    try:
        queued = dispatcher.submit(
            (0,) * meta.prompt_tokens,
            sampling,
            priority=read_priority(meta),
            deadline=read_deadline(meta, record.arrival),
            client=record.client,
            predicted_length=None if prediction is None else prediction.length * meta.choices,
            distribution=None if prediction is None or meta.choices > 1 else prediction.distribution,
            arrival=record.arrival,
        )
    except TooLate as error:
        message = f"{error}; try again later, or give it more time"
        raise busy(message, "deadline_unreachable", dispatcher.retry_after()) from None
    except Refused as error:
        raise failure_error(error.failure, str(error)) from None
    record.requests = (queued,)
    passage = Passage(asyncio.get_running_loop().create_future(), queued, record)
    passages.open[queued.row_id] = passage
    try:
        yield passage
    finally:
        dispatcher.cancel(queued)
        del passages.open[queued.row_id]
        passage.admitted.cancel()


async def _serve(request: web.Request, body: bytes, passage: Passage) -> web.StreamResponse:
    """Wait for the call's turn and pass it on, again where a backend fails before the answer's first byte."""
    lost = 0
    while True:
        backend = await passage.admitted
        passage.admitted = asyncio.get_running_loop().create_future()
        passage.asking = asyncio.ensure_future(_ask(request, body, backend))
        try:
            async with await passage.asking as answer:
                return await _pass_back(request, answer, backend, passage)
        except asyncio.CancelledError:
            if passage.over:
                raise passage.failure() from None
            raise
        except aiohttp.ClientError as error:
            if passage.over:
                raise passage.failure() from None
            lost += not isinstance(error, aiohttp.ClientConnectorError)
            if lost > MOST_LOST:
                backend.end(passage.request.row_id, 0, "its backends break off")
                raise ApiError(502, "the backends break off when they get this call", code="backend_failed") from None
            backend.hand_back(passage.request.row_id, f"{type(error).__name__}: {error}")


async def _ask(request: web.Request, body: bytes, backend: Backend) -> aiohttp.ClientResponse:
    """The beginning of a backend's answer. Raises aiohttp.ClientError."""
    url = backend.url + request.rel_url.raw_path_qs.removeprefix("/v1")
    headers = passed_headers(request.headers, backend.key)
    return await request.app[SESSION].request(request.method, url, data=body or None, headers=headers)


async def _pass_back(
    request: web.Request, answer: aiohttp.ClientResponse, backend: Backend, passage: Passage
) -> web.StreamResponse:
    """Send the client what the backend answers. Raises aiohttp.ClientError before the first byte only."""
    row, streams = passage.request.row_id, "event-stream" in answer.headers.get("Content-Type", "")
    piece = await answer.content.readany()  # until here another backend may answer
    response = web.StreamResponse(status=answer.status, headers=replied_headers(answer.headers))
    if not streams:
        response.content_length = answer.content_length
    backend.begin(row)
    told, tail = 0, b""
    try:
        await response.prepare(request)
        while piece:
            tail = (tail + piece)[-TAIL:]
            if streams and (events := piece.count(EVENT) - piece.count(DONE)):
                backend.made(row, events)
                told += events
            await response.write(piece)
            piece = await answer.content.readany()
    except aiohttp.ClientError as error:
        failure = passage.failure() if passage.over else ApiError(502, "the backend broke off", code="backend_failed")
        backend.end(row, 0, f"the backend broke off: {error}")
        await _break_off(response, failure, streams=streams)
        return response
    counts = COUNTED.findall(tail)
    rest = max(0, int(counts[-1]) - told) if counts else 0
    backend.end(row, rest, None if answer.status == 200 else f"status {answer.status}")
    await response.write_eof()
    return response


async def _break_off(response: web.StreamResponse, error: ApiError, *, streams: bool) -> None:
    """End an answer of which a part was sent: a stream by an event with the error, any other by closing."""
    if streams:
        with suppress(ConnectionError):
            await response.write(b"data: %b\n\ndata: [DONE]\n\n" % encode(error_body(error)))
            await response.write_eof()
    else:
        response.force_close()
        raise ConnectionResetError(error.message)


async def pass_through(request: web.Request) -> web.StreamResponse:
    """Pass on a call that takes no turn, such as the list of models, to a backend that answers; raises ApiError 503."""
    async with hold_body(request) as body:
        return await _pass_at_once(request, body)


async def _pass_at_once(request: web.Request, body: bytes) -> web.StreamResponse:
    for worker in [worker for worker in request.app[DISPATCHER].workers if worker.serves]:
        assert isinstance(worker.port, Backend)
        try:
            answer = await _ask(request, body, worker.port)
        except aiohttp.ClientError:
            continue
        async with answer:
            response = web.StreamResponse(status=answer.status, headers=replied_headers(answer.headers))
            response.content_length = answer.content_length
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response
    raise ApiError(503, "no backend answers; try again later", code="no_executor", headers={"Retry-After": "1"})
