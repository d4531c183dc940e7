"""Reads, queues and forwards a call, bytes unchanged both ways; it may be retried elsewhere until its answer's first
byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from aiohttp import web

from engine.sampling.params import SamplingParams
from scheduler.dispatcher import Known
from scheduler.length.features import LengthQuery
from scheduler.request import Request
from server.api.errors import ApiError
from server.api.input.body import LARGE, check_parts, hold_body
from server.api.limits import LIMITS
from server.api.output.reply import SHORT_FORM, expectation_of, headers_of
from server.api.output.wanted import length_scope
from server.api.register import CALL, REGISTER, Record
from server.api.served_model import DISPATCHER, LENGTHS
from server.api.ticket import TICKET, check_tokens, submit
from server.gateway.asking import BACKENDS, are_one, ask, plain_path, read_aside, refuse_kept
from server.gateway.backend import ROOM, Backend
from server.gateway.merged import as_stream
from server.gateway.meta import (
    BYTES_PER_TOKEN,
    MOST_PROMPT,
    CallMeta,
    read_cache_key,
    read_deadline,
    read_meta,
    read_priority,
    refuse_unreadable,
)
from server.gateway.passage import PASSAGES, Passage
from server.gateway.relay import NotWhole, relay
from server.http.access import spend_tokens
from server.http.proxy import replied_headers

MOST_LOST = 5  # failures before an answer, which the call may cause

UNSTATED = 4096  # tokens of an answer without max_tokens

# paths below /v1 to data stored at backends
KEEPING = frozenset(
    {
        *("files", "uploads", "batches", "responses", "conversations", "threads", "assistants", "vector_stores"),
        *("containers", "fine_tuning", "videos"),
    }
)
MINGLED = frozenset({"chat", "messages", "requests"})  # partly so


async def pass_call(request: web.Request) -> web.StreamResponse:
    """Raises ApiError 400, 408, 413, 429, 499, 502, 503 or 504."""
    async with hold_body(request) as body:
        return await _queue(request, body)


async def _queue(request: web.Request, body: bytes) -> web.StreamResponse:
    app, ticket = request.app, request[TICKET]
    ticket.count_answers(1)
    meta, words, streamed = await read_aside(_read, body, request.path, are_one(app))
    ticket.count_answers(meta.choices)
    model, user = (one if isinstance(one, str) else None for one in (meta.model, meta.user))
    record = Record.of(request, "call-", model or "", user, stream=meta.stream is True)
    request[CALL] = record.id
    holder = record.caller.holder
    with app[REGISTER].enter(record):
        most = min(meta.most or UNSTATED, ROOM) * meta.choices
        scope = length_scope(holder, None) if holder else ""
        query = LengthQuery("", "", meta.prompt_tokens, most, words, scope)
        sampling = SamplingParams(max_tokens=most)
        prediction = await app[LENGTHS].predict(query, sampling)
        record.check()
        expected = most if prediction is None else min(most, int(prediction.length))
        check_tokens(meta.prompt_tokens + expected, app[LIMITS], app[DISPATCHER])
        known = Known(
            priority=read_priority(meta),
            deadline=read_deadline(meta, record.arrival),
            client=record.client,
            prompt_cache_key=read_cache_key(meta, record.client),
            predicted_length=None if prediction is None else prediction.length * meta.choices,
            distribution=None if prediction is None or meta.choices > 1 else prediction.distribution,
        )
        queued = submit(app, record, (0,) * meta.prompt_tokens, sampling, query, prediction, known)
        with _open_passage(app, record, queued) as passage:
            passage.as_stream = streamed
            ticket.settle()
            request[SHORT_FORM] = headers_of(expectation_of((passage.request,)))
            spend_tokens(app, holder, meta.prompt_tokens)
            try:
                return await _serve(request, body, passage)
            finally:
                spend_tokens(app, holder, passage.request.generated)


def _read(body: bytes, path: str, apart: bool) -> tuple[CallMeta, tuple[int, ...], bytes | None]:
    """Fields, words, and the streaming body. Raises ApiError 400, and 403 for what keys are not kept `apart` in."""
    if len(body) >= LARGE:
        check_parts(body)
    meta = read_meta(body)
    with refuse_unreadable():
        if apart and (name := meta.kept()):
            raise refuse_kept(name)
        return meta, meta.words(), as_stream(path, meta, body)


@contextmanager
def _open_passage(app: web.Application, record: Record, queued: Request) -> Iterator[Passage]:
    """Leaving cancels it. Raises ApiError."""
    passages = app[PASSAGES]
    record.requests = (queued,)
    passage = Passage(asyncio.get_running_loop().create_future(), queued, record)
    passages.open[queued.row_id] = passage
    try:
        yield passage
    finally:
        record.leave()
        app[DISPATCHER].cancel(queued)
        del passages.open[queued.row_id]
        passage.admitted.cancel()


async def _serve(request: web.Request, body: bytes, passage: Passage) -> web.StreamResponse:
    lost = 0
    while True:
        backend = await passage.admitted
        passage.admitted = asyncio.get_running_loop().create_future()
        passage.asking = asyncio.ensure_future(ask(request, passage.as_stream or body, backend))
        try:
            async with await passage.asking as answer:
                return await relay(request, answer, backend, passage)
        except NotWhole:
            passage.as_stream = None
            passage.go(backend)
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
        except ApiError as error:
            backend.end(passage.request.row_id, 0, error.message)
            raise


async def pass_other(request: web.Request) -> web.StreamResponse:
    """For stored objects and unknown paths; raises ApiError 400, 403, 404 or 503."""
    path, settings = plain_path(request), request.app[BACKENDS]
    first = path.split("/")[2]
    if first in KEEPING | MINGLED and are_one(request.app):
        raise refuse_kept(path)
    if first not in KEEPING and not settings.pass_unknown:
        raise ApiError(404, f"{path} is none of the paths that are passed on (GET / lists them; --pass-unknown)")
    return await pass_through(request)


async def pass_through(request: web.Request) -> web.StreamResponse:
    """Not queued; raises ApiError 400, 502 or 503."""
    async with hold_body(request) as body:
        if TICKET in request:
            request[TICKET].spend(min(len(body) // BYTES_PER_TOKEN, MOST_PROMPT))
        return await _pass_at_once(request, body)


async def _pass_at_once(request: web.Request, body: bytes) -> web.StreamResponse:
    for worker in [worker for worker in request.app[DISPATCHER].workers if worker.serves]:
        assert isinstance(worker.port, Backend)
        try:
            answer = await ask(request, body, worker.port)
        except aiohttp.ClientError:
            continue
        async with answer:
            response = web.StreamResponse(status=answer.status, headers=replied_headers(answer.headers))
            response.content_length = answer.content_length
            await response.prepare(request)
            try:
                async for piece in answer.content.iter_any():
                    await response.write(piece)
            except aiohttp.ClientError as error:
                response.force_close()
                raise ConnectionResetError(f"the backend broke off: {error}") from None
            await response.write_eof()
            return response
    raise ApiError(503, "no backend answers; try again later", code="no_executor", headers={"Retry-After": "1"})
