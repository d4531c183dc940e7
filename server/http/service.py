"""The parts of a server, put together by the composition root, and the HTTP application that is made of them: its
routes, its middlewares, and the headers and log line of every response.

Refused calls are answered one after another while rows run: a sender whose calls are refused sends the next at once,
thousands a second; executors, which ask for the interpreter at each product, would wait for it as often as calls come.
"""

from __future__ import annotations

import logging
import time
from asyncio import sleep
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Handler

from scheduler.dispatcher import Dispatcher
from scheduler.recent import Recent
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.profile_file import Conditions
from scheduler.stream import Wakeups
from server.api.embeddings import EMBEDDER
from server.api.errors import ApiError, error_code, error_response, errors_as_json
from server.api.health import CREATED, LIFE, Life
from server.api.input.ignored import HEADER as IGNORED_HEADER
from server.api.input.ignored import IGNORED
from server.api.input.structured import give_up_compiling
from server.api.limits import LIMITS, PENDING, Limits, PendingCalls
from server.api.openapi import DOCUMENT, encode_document
from server.api.operation import BY_HANDLER, NOWHERE, OPERATION, Operation
from server.api.operations import OPERATIONS
from server.api.output.reply import SHORT_FORM
from server.api.output.sse import LOOKS, SENT
from server.api.register import REGISTER, Register
from server.api.responses import STORE, ResponseStore
from server.api.served_model import DISPATCHER, LENGTHS, MODEL, ServedModel
from server.api.ticket import admit
from server.batches.asker import ModelAsker
from server.batches.batches import BATCHES, Batches, start_batches, stop_batches
from server.dashboard.feed import FEED, NAME, Feed, close_feed
from server.embeddings import TextEmbedder
from server.http.access import ACCESS, HOLDER, holder_of
from server.http.front import FRONT, OPEN, Front, add_origin_headers, guard
from server.http.request_id import CURRENT_ID, HEADER, request_id
from server.lengths.lengths import Lengths
from server.observe.logs import with_fields
from server.observe.metrics import METRICS, Metrics
from server.observe.tracing import TRACING, close_tracing, trace_calls


@dataclass(frozen=True, slots=True)
class FilesPlace:
    """A folder for files and batches, which no other server has; its capacity in bytes."""

    folder: Path
    capacity: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The conditions under which executors run, and the prices known for them at the start; None where none are."""

    conditions: Conditions
    prices: Bilinear | None


@dataclass(frozen=True, slots=True)
class Service:
    """A server whose parts are loaded, ready to answer."""

    dispatcher: Dispatcher
    served_model: ServedModel | None
    """The model that this process computes; None where others do."""
    lengths: Lengths
    title: str = ""
    """The name of what is served, where that is no model of this process."""
    operations: Sequence[Operation] = OPERATIONS
    """Its paths."""
    parts: Mapping[web.AppKey[Any], Any] = field(default_factory=dict)
    """What handlers need besides, under their keys."""
    limits: Limits = field(default_factory=Limits)
    responsive: Callable[[], bool] = field(default=lambda: True)
    """Whether executors that have work go on with it."""
    metrics: Metrics | None = None
    """Counts for /metrics."""
    feed: Feed | None = None
    """Events for the dashboard."""
    embedder: TextEmbedder | None = None
    """Embeds texts for clients; None where nothing does."""
    files: FilesPlace | None = None
    """Where files and batches are kept; None for nowhere."""
    machine: Machine | None = None
    """The machine that computes, which the server describes at its start."""

    @property
    def name(self) -> str:
        """The name of what is served."""
        return self.title if self.served_model is None else self.served_model.id

    @property
    def model(self) -> ServedModel:
        """The model, of a service that computes one."""
        assert self.served_model is not None
        return self.served_model

    def slots(self) -> int:
        """Rows that the executors can hold."""
        return sum(worker.info.max_rows for worker in self.dispatcher.workers if worker.serves)


log = logging.getLogger(__name__)

QUIET = ("/health", "/metrics", "/dashboard/")
"""Beginnings of the paths that monitoring asks every few seconds, and browsers by the dozen: a line each would be most
of the log."""

REFUSALS = ("429", "503")
"""Statuses of calls that could have been served at another time."""


def build_app(service: Service, front: Front = OPEN) -> web.Application:
    """The whole HTTP surface of one service, each part below the key by which handlers know it."""
    middlewares = [one for one in MIDDLEWARES if one is not trace_calls or front.tracing is not None]
    app = web.Application(middlewares=middlewares, client_max_size=service.limits.max_body_bytes)
    parts: dict[web.AppKey[Any], Any] = {
        DISPATCHER: service.dispatcher,
        NAME: service.name,
        MODEL: service.served_model,
        LIMITS: service.limits,
        LENGTHS: service.lengths,
        STORE: ResponseStore(service.limits.stored_response_bytes),
        LIFE: Life(service.responsive),
        CREATED: int(time.time()),
        PENDING: PendingCalls(),
        LOOKS: Wakeups(),
        REGISTER: Register(service.dispatcher),
        EMBEDDER: service.embedder,
        METRICS: service.metrics,
        SENT: None if service.metrics is None else service.metrics.sent.observe,
        FEED: service.feed,
        ACCESS: front.access,
        FRONT: front,
        TRACING: front.tracing,
        PACE: Pace(),
        DOCUMENT: encode_document(service.operations),
        BY_HANDLER: {operation.handler: operation for operation in service.operations},
        **service.parts,
    }
    for key, part in parts.items():
        if part is not None:
            app[key] = part
    if (files := service.files) is not None:
        most = service.limits.max_body_bytes
        app[BATCHES] = Batches(files.folder, files.capacity, most, ModelAsker(app), service.slots)
    app.on_cleanup.append(close_tracing)
    app.add_routes(
        [
            getattr(web, operation.method)(operation.path, operation.handler, expect_handler=meet_expectation)
            for operation in service.operations  # `web.get` answers HEAD too
        ]
    )
    app.on_startup.append(start_batches)
    app.on_shutdown.extend((stop_batches, close_feed, give_up_compiling))
    app.on_response_prepare.extend((_add_headers, add_origin_headers))
    return app


async def meet_expectation(request: web.Request) -> web.Response | None:
    """Tell a client that waits for it to go on with its body; answer 417 where it expects anything else."""
    if request.headers.get("Expect", "").lower() != "100-continue":
        return error_response(ApiError(417, "Expect: only 100-continue is met; leave it out", close=True))
    if request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # or no error could be answered any more
    return None


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "Lengthwise"
    response.headers[HEADER] = request_id(request)
    if (dialect := request.get(OPERATION, NOWHERE).dialect) is not None:
        response.headers[dialect.id_header] = request_id(request)
    response.headers.update(request.get(SHORT_FORM, {}))
    if names := IGNORED.get():
        response.headers[IGNORED_HEADER] = ", ".join(names)


@web.middleware
async def log_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Note whose id is served and which operation, and log each request when it ends."""
    start = time.monotonic()
    status = "client gone"
    CURRENT_ID.set(request_id(request))
    IGNORED.set([])
    request[OPERATION] = request.app[BY_HANDLER].get(request.match_info.handler, NOWHERE)
    try:
        response = await handler(request)
        if 400 <= response.status < 500 and response.status not in UNPACED:
            await _pace(request)
        status = str(response.status)
        return response
    finally:
        _log_end(request, status, time.monotonic() - start)


def _log_end(request: web.Request, status: str, seconds: float) -> None:
    path = request.rel_url.raw_path  # still percent-encoded: it could hold line breaks
    level = logging.DEBUG if path.startswith(QUIET) else logging.INFO
    milliseconds = round(seconds * 1000)
    caller, code = holder_of(request), error_code(request)
    line = f"{request.method} {path} {status} {milliseconds} ms {request_id(request)}"
    fields = with_fields(
        method=request.method, path=path, status=status, duration_ms=milliseconds, caller=caller, error=code
    )
    log.log(level, "%s%s", line, f" by {caller}" if caller else "", extra=fields)
    if (metrics := request.app.get(METRICS)) is not None:
        resource = request.match_info.route.resource
        route = "unknown" if resource is None else resource.canonical
        refusal = code if status in REFUSALS and request[OPERATION].generates else None
        metrics.count_response(request.method, route, status, refusal)


INTERVAL = 0.02
"""Seconds between two refusals of one sender."""

BURST = 10
"""Refusals of one sender that need not wait."""

LONGEST = 1.0
"""Seconds that a refusal waits at most."""

SENDERS = 1024
"""Senders that are remembered: those refused last."""

UNPACED = (429, 499)
"""Statuses that are told at once: the call may come again later, or is over."""


class Pace:
    """When the next refusal of each sender is due, at a constant rate with bursts (a leaky bucket). Event loop only."""

    def __init__(self) -> None:
        self._due = Recent[str, float](SENDERS)

    def wait(self, sender: str, now: float) -> float:
        """Seconds that a refusal of this sender waits; it is counted."""
        due = max(self._due.pop(sender, now), now) + INTERVAL
        seconds = min(max(0.0, due - now - BURST * INTERVAL), LONGEST)
        self._due[sender] = now + seconds + BURST * INTERVAL if seconds else due
        return seconds


PACE = web.AppKey("pace", Pace)


async def _pace(request: web.Request) -> None:
    """Let refusals that follow one another fast wait, where rows run that they would disturb."""
    dispatcher, sender = request.app[DISPATCHER], request.get(HOLDER) or request.remote or ""
    if dispatcher.table.requests_running:
        await sleep(request.app[PACE].wait(sender, dispatcher.now()))


MIDDLEWARES = (log_requests, trace_calls, errors_as_json, guard, admit)
"""Middlewares from the outside inwards: those that turn a call away come before those that read it."""
