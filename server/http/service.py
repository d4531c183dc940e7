"""The HTTP application. Rapid refusals are delayed while rows run, since each takes the interpreter from executors."""

import logging
import time
from asyncio import sleep
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Handler

from models.recent import Recent
from scheduler.dispatcher import Dispatcher
from scheduler.programs.recognizer import Recognizer
from scheduler.serving_time import bilinear, profile_file
from scheduler.stream import Wakeups
from server import access, embeddings
from server.api import health, openapi, register, ticket
from server.api.batches.asker import ModelAsker
from server.api.embeddings import EMBEDDER
from server.api.errors import ApiError, error_code, error_response, errors_as_json, is_refused
from server.api.input import program, refused, structured
from server.api.operation import BY_HANDLER, NOWHERE, OPERATION, Operation
from server.api.output import reply, sse
from server.api.responses import STORE, ResponseStore
from server.api.served_model import DISPATCHER, LENGTHS, LIMITS, MODEL, ServedModel
from server.batches.batches import BATCHES, Batches, start_batches, stop_batches
from server.config import FrontConfig, ServeConfig
from server.dashboard.feed import FEED, NAME, Feed, close_feed
from server.http.front import FRONT, OPEN, Front, add_origin_headers, guard
from server.http.operations import OPERATIONS
from server.lengths.lengths import Lengths
from server.observe import logs, tracing
from server.observe.metrics import METRICS, MetricsCollector
from server.request_id import CURRENT_ID, HEADER, request_id


@dataclass(frozen=True, slots=True)
class FilesPlace:
    """For files and batches, used by one server; capacity in bytes."""

    folder: Path
    capacity: int


@dataclass(frozen=True, slots=True)
class HostMachine:
    """Conditions and, if known, the model of its speed."""

    conditions: profile_file.Conditions
    model: bilinear.Bilinear | None


@dataclass(frozen=True, slots=True)
class Service:
    dispatcher: Dispatcher
    served_model: ServedModel | None  # computed by this process
    lengths: Lengths
    title: str = ""  # without a model
    operations: Sequence[Operation] = OPERATIONS
    parts: Mapping[web.AppKey[Any], Any] = field(default_factory=dict)  # further state of handlers
    limits: FrontConfig = field(default_factory=ServeConfig)
    responsive: Callable[[], bool] = field(default=lambda: True)  # busy executors progress
    metrics: MetricsCollector | None = None
    feed: Feed | None = None  # for the dashboard
    embedder: embeddings.TextEmbedder | None = None  # for /v1/embeddings
    files: FilesPlace | None = None
    machine: HostMachine | None = None  # described at startup

    @property
    def name(self) -> str:
        return self.title if self.served_model is None else self.served_model.names[0]

    @property
    def model(self) -> ServedModel:
        """Of a service that computes one."""
        assert self.served_model is not None
        return self.served_model

    def slots(self) -> int:
        return sum(worker.info.max_rows for worker in self.dispatcher.workers if worker.serves)


log = logging.getLogger(__name__)

QUIET = ("/health", "/metrics", "/dashboard/")  # polled every few seconds, hence not logged

REFUSALS = ("429", "503")  # worth a retry


def build_app(service: Service, front: Front = OPEN) -> web.Application:
    middlewares = [one for one in MIDDLEWARES if one is not tracing.trace_calls or front.tracing is not None]
    limits = service.limits
    app = web.Application(middlewares=middlewares, client_max_size=limits.max_body_bytes)
    parts: dict[web.AppKey[Any], Any] = {
        DISPATCHER: service.dispatcher,
        NAME: service.name,
        MODEL: service.served_model,
        LIMITS: limits,
        LENGTHS: service.lengths,
        STORE: ResponseStore(limits.stored_response_bytes) if isinstance(limits, ServeConfig) else None,
        health.LIFE: health.Life(service.responsive),
        health.CREATED: int(time.time()),
        ticket.PENDING: ticket.PendingCalls(),
        program.PROGRAMS: Recognizer(),
        sse.LOOKS: Wakeups(),
        register.REGISTER: register.Register(service.dispatcher),
        EMBEDDER: service.embedder,
        METRICS: service.metrics,
        sse.SENT: None if service.metrics is None else service.metrics.sent.observe,
        FEED: service.feed,
        access.ACCESS: front.access,
        FRONT: front,
        tracing.TRACING: front.tracing,
        PACE: RefusalLimiter(),
        openapi.DOCUMENT: openapi.encode_document(service.operations),
        BY_HANDLER: {operation.handler: operation for operation in service.operations},
        **service.parts,
    }
    for key, part in parts.items():
        if part is not None:
            app[key] = part
    if (files := service.files) is not None:
        app[BATCHES] = Batches(files.folder, files.capacity, limits.max_body_bytes, ModelAsker(app), service.slots)
    app.on_cleanup.append(tracing.close_tracing)
    for operation in service.operations:
        route = getattr(web, operation.method, partial(web.route, operation.method))  # `web.get` adds HEAD
        app.add_routes([route(operation.path, operation.handler, expect_handler=meet_expectation)])
    app.on_startup.append(start_batches)
    app.on_shutdown.extend((stop_batches, close_feed, structured.give_up_compiling))
    app.on_response_prepare.extend((_add_headers, add_origin_headers))
    return app


async def meet_expectation(request: web.Request) -> web.Response | None:
    """100-continue, or status 417."""
    if request.headers.get("Expect", "").lower() != "100-continue":
        return error_response(ApiError(417, "Expect: only 100-continue is met; leave it out", close=True))
    if request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # allows an error response
    return None


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "Lengthwise"
    response.headers[HEADER] = request_id(request)
    if (dialect := request.get(OPERATION, NOWHERE).dialect) is not None:
        response.headers[dialect.id_header] = request_id(request)
    response.headers.update(request.get(reply.SHORT_FORM, {}))
    if names := refused.IGNORED.get():
        response.headers[refused.IGNORED_HEADER] = ", ".join(names)


@web.middleware
async def log_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Sets id and operation."""
    start = time.monotonic()
    status = "client gone"
    CURRENT_ID.set(request_id(request))
    refused.IGNORED.set([])
    request[OPERATION] = request.app[BY_HANDLER].get(request.match_info.handler, NOWHERE)
    try:
        response = await handler(request)
        if is_refused(request, response.status):
            await _pace(request)
        status = str(response.status)
        return response
    finally:
        _log_end(request, status, time.monotonic() - start)


def _log_end(request: web.Request, status: str, seconds: float) -> None:
    path = request.rel_url.raw_path  # percent-encoded, so without line breaks
    level = logging.DEBUG if path.startswith(QUIET) else logging.INFO
    milliseconds = round(seconds * 1000)
    caller, code = access.holder_of(request), error_code(request)
    line = f"{request.method} {path} {status} {milliseconds} ms {request_id(request)}"
    fields = logs.with_fields(
        method=request.method, path=path, status=status, duration_ms=milliseconds, caller=caller, error=code
    )
    log.log(level, "%s%s%s", line, f" {code}" if code else "", f" by {caller}" if caller else "", extra=fields)
    if (metrics := request.app.get(METRICS)) is not None:
        resource = request.match_info.route.resource
        route = "unknown" if resource is None else resource.canonical
        refusal = code if status in REFUSALS and request[OPERATION].generates else None
        metrics.count_response(request.method, route, status, refusal)


INTERVAL = 0.02  # seconds between refusals of a sender

BURST = 10  # refusals without delay

LONGEST = 1.0  # seconds

SENDERS = 1024  # least recent dropped


class RefusalLimiter:
    """A leaky bucket for each sender. Event loop only."""

    def __init__(self) -> None:
        self._due = Recent[str, float](SENDERS)

    def wait(self, sender: str, now: float) -> float:
        """Seconds; counts the refusal."""
        due = max(self._due.pop(sender, now), now) + INTERVAL
        seconds = min(max(0.0, due - now - BURST * INTERVAL), LONGEST)
        self._due[sender] = now + seconds + BURST * INTERVAL if seconds else due
        return seconds


PACE = web.AppKey("pace", RefusalLimiter)


async def _pace(request: web.Request) -> None:
    dispatcher, sender = request.app[DISPATCHER], request.get(access.HOLDER) or request.remote or ""
    if dispatcher.table.requests_running:
        await sleep(request.app[PACE].wait(sender, dispatcher.now()))


# outermost first: refusals before reading
MIDDLEWARES = (log_requests, tracing.trace_calls, errors_as_json, guard, ticket.admit)
