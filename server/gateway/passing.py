"""Reads, queues and forwards a call, bytes unchanged both ways."""

import asyncio
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NoReturn

from aiohttp import web
from msgspec import Raw

from engine.sampling.params import SamplingParams
from scheduler.dispatcher import Dispatcher
from scheduler.length.features import LengthQuery
from scheduler.length.prediction import Prediction
from scheduler.programs.recognizer import Signs
from scheduler.request import Request
from scheduler.submission import Known
from server.access import spend_tokens
from server.api.errors import ApiError, reword_errors
from server.api.input.body import hold_body, parse
from server.api.input.program import PROGRAMS, read_signs
from server.api.input.promise import HEADER, ask_for, read_header
from server.api.input.sampling import length_scope
from server.api.operation import OPERATION
from server.api.output.reply import SHORT_FORM, expectation_of, headers_of, json_response
from server.api.register import CALL, REGISTER, Record
from server.api.served_model import DISPATCHER, LENGTHS, LIMITS
from server.api.ticket import TICKET, check_tokens, foresee_end, submit
from server.gateway.asking import BACKENDS, are_one, check_body, plain_path, read_aside, refuse_kept
from server.gateway.merged import as_stream
from server.gateway.meta import (
    BYTES_PER_TOKEN,
    MOST_PROMPT,
    WANTED,
    CallMeta,
    PossibleCall,
    read_meta,
    refuse_unreadable,
    without_promise,
)
from server.gateway.passage import PASSAGES, RESPONSES, ProxiedCall
from server.gateway.sending import check_alive, refuse_estimate, send_at_once, send_streamed
from server.http.operations import OPERATIONS

UNSTATED = 4096  # tokens of an answer without max_tokens

# paths below /v1 to data stored at backends
KEEPING = frozenset(
    ("files", "uploads", "batches", "responses", "conversations", "threads", "assistants", "vector_stores")
    + ("containers", "fine_tuning", "videos")
)
MINGLED = frozenset({"chat", "messages", "requests"})  # partly so
PASSED = ("DELETE", "GET", "HEAD", "POST")  # methods


async def pass_call(request: web.Request) -> web.StreamResponse:
    """Raises ApiError 400, 408, 413, 429, 499, 502, 503 or 504."""
    async with hold_body(request) as body:
        return await _queue(request, body)


async def estimate(request: web.Request) -> web.Response:
    """What a call would cost and take; raises ApiError 400, 404 and 503."""
    async with hold_body(request) as body:
        meta, words, answers, _, body, _ = await read_aside(_read, body, request)
        await refuse_estimate(request, body)
    record, dispatcher = _record(request, meta), request.app[DISPATCHER]
    query, sampling = _query(dispatcher, record, meta, words, answers)
    known = _known(request, record, meta, answers, await request.app[LENGTHS].predict(query, sampling))
    requests = dispatcher.admission.estimate_all([((0,) * meta.prompt_tokens, sampling, known)])
    told = foresee_end(dispatcher, requests)
    request[TICKET].spend(told.prompt_tokens)
    return json_response(told)


async def _queue(request: web.Request, body: bytes) -> web.StreamResponse:
    app, ticket, generates = request.app, request[TICKET], request[OPERATION].generates
    ticket.count_answers(1)
    meta, words, answers, signs, body, streamed = await read_aside(_read, body, request)
    ticket.count_answers(answers)
    record = _record(request, meta)
    if generates:
        record.program = app[PROGRAMS].recognize(record.client, signs, record.arrival)
    request[CALL] = record.id
    holder = record.caller
    with app[REGISTER].enter(record):
        query, sampling = _query(app[DISPATCHER], record, meta, words, answers)
        prediction = await app[LENGTHS].predict(query, sampling) if generates else None
        record.check()
        expected = sampling.max_tokens if prediction is None else answers * int(prediction.length)
        check_tokens(query.user_input_length + expected, app[LIMITS], app[DISPATCHER])
        known = _known(request, record, meta, answers, prediction)
        (queued,) = submit(app, record, [(((0,) * query.user_input_length, sampling, known), query, prediction)])
        with _open_passage(request, record, queued) as passage:
            passage.as_stream = streamed
            passage.repeats = request.path != RESPONSES or meta.store is False
            ticket.settle()
            request[SHORT_FORM] = headers_of(expectation_of((passage.request,), app[DISPATCHER].now()))
            spend_tokens(app, holder, query.user_input_length)
            try:
                return await send_streamed(body, passage, progress=meta.asks_progress)
            finally:
                spend_tokens(app, holder, passage.request.generated)


def _query(
    dispatcher: Dispatcher, record: Record, meta: CallMeta, words: tuple[int, ...], answers: int
) -> tuple[LengthQuery, SamplingParams]:
    context = max(worker.info.context_length for worker in dispatcher.workers)
    holder, most = record.caller, min(meta.most or UNSTATED, context)
    scope = length_scope(holder, None) if holder else ""
    sampling = SamplingParams(max_tokens=answers * most, min_tokens=answers * min(most, meta.least))
    return LengthQuery("", "", meta.prompt_tokens, most, words, scope, answers), sampling


def _read(body: bytes, request: web.Request) -> tuple[CallMeta, tuple[int, ...], int, Signs, bytes, bytes | None]:
    """With words, answers, and the body to send, whole and as a stream. Raises ApiError 400 and 403."""
    if request[OPERATION].rationed:
        check_body(body, request)
        return CallMeta(max_tokens=1, prompt=Raw(body)), (), 1, Signs(), body, None
    meta, fields = read_meta(body), check_body(body, request)
    if meta.promise is not None or HEADER in request.headers or not request[OPERATION].generates:  # estimated
        with reword_errors({}, WANTED):
            parse(body, PossibleCall).check()
    with refuse_unreadable(body):
        signs = read_signs(body, request.headers, meta)
        if meta.promise is not None:
            body = without_promise(body)
        return meta, meta.words(fields), meta.answers, signs, body, as_stream(request.path, meta, body)


def _record(request: web.Request, meta: CallMeta) -> Record:
    model, user = (one if isinstance(one, str) else None for one in (meta.model, meta.user))
    return Record.of(request, "call-", model or "", user, stream=meta.stream is True)


def _known(request: web.Request, record: Record, meta: CallMeta, answers: int, prediction: Prediction | None) -> Known:
    if (asked := meta.promise or read_header(request.headers)) is not None:
        check_alive(request.app)
    return Known(
        priority=meta.priority or 0,
        deadline=None if meta.deadline_ms is None else record.arrival + meta.deadline_ms / 1000,
        **(Known() if asked is None else ask_for(asked, record.arrival, request.app[DISPATCHER].now())),
        client=record.client,
        prompt_cache_key=meta.read_cache_key(record.client),
        program=record.program,
        predicted_length=None if prediction is None else answers * prediction.length,
        distribution=None if prediction is None or answers > 1 else prediction.distribution,
    )


@contextmanager
def _open_passage(request: web.Request, record: Record, queued: Request) -> Iterator[ProxiedCall]:
    """Leaving cancels it."""
    passages = request.app[PASSAGES]
    record.requests = (queued,)
    passage = ProxiedCall(asyncio.get_running_loop().create_future(), queued, record, request)
    passages.open[queued.row_id] = passage
    try:
        yield passage
    finally:
        record.leave()
        request.app[DISPATCHER].cancel(queued)
        del passages.open[queued.row_id]
        passage.admitted.cancel()


async def pass_other(request: web.Request) -> web.StreamResponse:
    """For stored objects and unknown paths; raises ApiError 400, 403, 404, 405 or 503."""
    path = plain_path(request)
    first = path.split("/")[2]
    if (first not in KEEPING or path == RESPONSES) and not request.app[BACKENDS].pass_unknown:
        await refuse_method(request)
    if first in KEEPING | MINGLED and are_one(request.app):
        raise refuse_kept(path)
    return await pass_through(request)


async def refuse_method(request: web.Request) -> NoReturn:
    """Raises ApiError 400 and 404, and HTTPMethodNotAllowed."""
    path = plain_path(request)
    for known in request.app.router.resources():
        if not known.canonical.startswith("/v1/{") and (methods := (await known.resolve(request))[1]):
            raise web.HTTPMethodNotAllowed(request.method, methods)
    if path.split("/")[2] in KEEPING or request.app[BACKENDS].pass_unknown:
        raise web.HTTPMethodNotAllowed(request.method, _methods(path))
    raise ApiError(404, f"{path} is none of the paths that are passed on (GET / lists them; --pass-unknown)")


def _methods(path: str) -> Collection[str]:
    """Of the server; all that are passed on where it has no such path."""
    found = {one.method.upper() for one in OPERATIONS if re.fullmatch(re.sub(r"\{id\}", "[^/]+", one.path), path)}
    return found | ({"HEAD"} if "GET" in found else set()) or PASSED


async def pass_short(request: web.Request) -> web.StreamResponse:
    """For calls that generate no text; raises as pass_call."""
    return await pass_call(request)


async def pass_through(request: web.Request) -> web.StreamResponse:
    """Not queued; raises ApiError 400, 502 or 503."""
    async with hold_body(request) as body:
        if TICKET in request:
            request[TICKET].spend(min(len(body) // BYTES_PER_TOKEN, MOST_PROMPT))
        await read_aside(check_body, body, request)
        return await send_at_once(request, body)
