"""A call's way to a backend, and all rules for sending it again, there or elsewhere, before the answer's first byte."""

import asyncio
import re
from contextlib import nullcontext, suppress

import aiohttp
import msgspec
from aiohttp import web

from scheduler.request import Failure
from server.api.errors import ApiError, ErrorBody, stream_error
from server.api.input.body import LARGE
from server.api.operation import OPERATION
from server.api.output import sse
from server.api.served_model import DISPATCHER, LIMITS
from server.gateway.asking import BACKENDS, ask
from server.gateway.backend import Backend
from server.gateway.health import FAULTS, REFUSED, explain
from server.gateway.last_events import keep_alives, last_events
from server.gateway.passage import ProxiedCall
from server.gateway.relay import NotWhole, broke_off, cut_off, has_left, relay
from server.http.proxy import replied_headers

RETRIES = 2  # a call that backends fail on could be what makes them
PAUSE = 0.25  # seconds before the first retry where there is no other backend
NONE_ANSWERS = "no backend answers (the gateway's log says why); try again later"
FIRST_ANSWER = 30.0  # seconds to wait while no backend answers
REFUSAL = 5.0  # seconds to wait for an estimate's

UNFETCHED = b'"model_not_fetched"'  # until somebody fetches it

ERROR_FIRST = re.compile(rb'(?:event: ?error\r?\n)?data: ?\{"(?:error": ?[^n]|type": ?"error")')  # in a stream

UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


def no_backend() -> ApiError:
    return ApiError(503, NONE_ANSWERS, code="no_executor", headers={"Retry-After": "1"})


def check_alive(app: web.Application) -> None:
    """Raises ApiError 503 where no end can be foreseen."""
    if not app[DISPATCHER].alive:
        raise no_backend()


async def send_streamed(body: bytes, passage: ProxiedCall, *, progress: bool) -> web.StreamResponse:
    """With headers and comments while it waits, and errors as events, where `progress` or a promise is asked for; then
    raises ConnectionError only.
    """
    progress = progress or sse.HEADER in passage.record.asks
    if not (passage.record.stream and (progress or passage.request.promised is not None)):
        return await send_call(body, passage)
    request, app = passage.asked, passage.asked.app
    events = keep_alives(passage)
    async with sse.EventStream(request, app[LIMITS], lambda: next(events)) as stream:
        passage.early = stream
        notes = sse.PlaceNotes(stream, (passage.request,), app[DISPATCHER])
        with sse.look_often(notes.look, sse.FIRST_LOOK, app[sse.LOOKS]) if progress else nullcontext():
            try:
                return await send_call(body, passage)
            except ConnectionError:
                raise
            except Exception as failure:
                error = stream_error(failure, request)
        await stream.forward(last_events(passage, error, first=True))
        await stream.response.write_eof()
        return stream.response


async def send_call(body: bytes, passage: ProxiedCall) -> web.StreamResponse:
    """In turn; raises ApiError."""
    request, row, retries = passage.asked, passage.request.row_id, 0
    settings = request.app[BACKENDS]
    while True:
        backend = await _turn(passage)
        passage.admitted = asyncio.get_running_loop().create_future()
        passage.asking = asyncio.ensure_future(_ask(request, passage.as_stream or body, backend, passage.repeats))
        left, known = 0 if settings.no_retry else RETRIES - retries, backend.health.tried
        try:
            async with asyncio.timeout(settings.first_byte_timeout or None) as limit, await passage.asking as answer:
                piece = await answer.content.readany()  # until here another backend may answer
                if not _is_tried_again(answer, piece, backend, passage, left):
                    return await relay(answer, piece, backend, passage, limit)
            if backend.fault is None:
                retries += 1
                await asyncio.sleep(PAUSE * 2**retries)
                passage.go(backend)
            else:
                retries += not known  # surely the backend's fault, and its rests grow
                backend.hand_back(row)
        except NotWhole:
            passage.as_stream = None
            passage.go(backend)
        except (aiohttp.ClientError, TimeoutError, asyncio.CancelledError) as error:
            if passage.over:
                raise passage.failure() from None
            if isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()) and task.cancelling():
                raise
            if has_left(request):
                raise ConnectionResetError("the client is gone") from None
            if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ClientError):
                backend.rest("sent no byte within --first-byte-timeout")
            if not isinstance(error, UNSENT):
                retries += 1
                if not (left and passage.repeats):
                    backend.end(row, 0, "its backend breaks off")
                    raise ApiError(502, "the backend broke off, or did not answer", code="backend_failed") from None
            backend.hand_back(row, explain(error))
        except ApiError as error:
            backend.end(row, 0, error.message)
            raise


async def _turn(passage: ProxiedCall) -> Backend:
    """Raises ApiError 503 where no backend has answered for FIRST_ANSWER seconds."""
    ports = [worker.port for worker in passage.asked.app[DISPATCHER].workers if isinstance(worker.port, Backend)]
    left = FIRST_ANSWER
    try:
        while not (await asyncio.wait([passage.admitted], timeout=left))[0]:
            left = FIRST_ANSWER - min(port.failed_for for port in ports)
            if left <= 0:
                passage.admitted.cancel()  # or failing would set an exception that nobody reads
                passage.asked.app[DISPATCHER].fail(passage.request, NONE_ANSWERS, Failure.EXECUTOR)
                raise no_backend()
        return passage.admitted.result()
    finally:
        passage.admitted.cancel()


def _is_tried_again(
    answer: aiohttp.ClientResponse, piece: bytes, backend: Backend, passage: ProxiedCall, left: int
) -> bool:
    """Whether the backend is at fault and the call goes on."""
    app = passage.asked.app
    status = 500 if answer.status == 200 and ERROR_FIRST.match(piece) else answer.status
    lasts = (status == 429 and app[BACKENDS].pass_client_keys) or (status == 503 and UNFETCHED in piece)
    if lasts or not backend.health.note(status):
        return False  # that key's own quota, a missing model, or the call's own fault
    others = any(worker.serves and worker.port is not backend for worker in app[DISPATCHER].workers)
    if others:
        backend.rest(f"answers {status}", answer.headers.get("Retry-After", ""))
    return left > 0 and (others or status in FAULTS - {429}) and (passage.repeats or status in REFUSED)


async def _ask(request: web.Request, body: bytes, backend: Backend, repeats: bool) -> aiohttp.ClientResponse:
    """Again, if it `repeats`, where the backend had closed an idle connection and did not read it."""
    while True:
        reused: list[bool] = []
        try:
            return await ask(request, body, backend, reused)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            if not (reused and repeats) or request.app[BACKENDS].no_retry:
                raise


async def refuse_estimate(request: web.Request, body: bytes) -> None:
    """As a backend that estimates does, if it answers. Raises ApiError 400 and 404, and 503 where none is alive."""
    check_alive(request.app)
    ports = (worker.port for worker in request.app[DISPATCHER].workers if worker.serves)
    backend = next((one for one in ports if isinstance(one, Backend) and one.estimates), None)
    if backend is None:
        return
    with suppress(aiohttp.ClientError, TimeoutError, msgspec.MsgspecError, UnicodeError, RecursionError):
        async with asyncio.timeout(REFUSAL), await ask(request, body, backend, []) as answer:
            if answer.status in (400, 404) and (answer.content_length or LARGE) < LARGE:
                error = msgspec.json.decode(await answer.read(), type=ErrorBody).error
                raise ApiError(answer.status, error.message, param=error.param, code=error.code)


async def send_at_once(request: web.Request, body: bytes) -> web.StreamResponse:
    """To one backend after another until one answers. Raises ApiError 502 or 503."""
    workers = [worker for worker in request.app[DISPATCHER].workers if worker.serves]
    repeats = request.method == "GET" or request[OPERATION].counts
    for left, worker in reversed([*enumerate(reversed(workers))]):
        assert isinstance(worker.port, Backend)
        left = 0 if request.app[BACKENDS].no_retry else left
        try:
            async with asyncio.timeout(request.app[BACKENDS].first_byte_timeout or None):
                answer = await _ask(request, body, worker.port, repeats)
        except UNSENT:
            continue
        except (aiohttp.ClientError, TimeoutError):
            if left and repeats:
                continue
            raise broke_off() from None
        if left and answer.status in (FAULTS if repeats else REFUSED):
            answer.close()
            continue
        async with answer:
            response = web.StreamResponse(status=answer.status, headers=replied_headers(answer.headers))
            response.content_length = answer.content_length
            await response.prepare(request)
            try:
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
            except aiohttp.ClientError:
                cut_off(request, broke_off(), whole=True)
            return response
    raise no_backend()
