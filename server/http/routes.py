"""The application: which path leads to which handler, and what every response carries."""

from __future__ import annotations

import logging
import time

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from server.api.calls.register import REGISTER, Register
from server.api.chat import chat_completions
from server.api.completions import completions
from server.api.errors import error_code, errors_as_json
from server.api.health import LIFE, Life, live, ready
from server.api.input.admission import admit, generates
from server.api.models import list_models, remember_start, show_model
from server.api.openapi import DOCUMENT, encoded, openapi
from server.api.output.wire import json_response
from server.api.requests import cancel_request, list_requests, show_request
from server.api.responses.endpoint import responses
from server.api.service import SERVICE, Service
from server.api.tokenize import detokenize, tokenize
from server.dashboard.feed import close_feed, events
from server.http.access import ACCESS, authenticate, ration
from server.http.cors import ORIGINS, guard_origins, tell_origins
from server.http.front import OPEN, Front
from server.http.hosts import HOSTS, guard_hosts
from server.http.page import PAGE, Page, part, wants_page
from server.http.request_id import HEADER, remember_id, request_id
from server.observe.logs import with_fields
from server.observe.metrics import metrics
from server.observe.tracing import TRACING, trace_calls
from server.version import VERSION

log = logging.getLogger(__name__)

POLLED = ("/health", "/metrics")
"""Beginnings of the paths that monitoring asks every few seconds: a line each would be most of the log."""

REFUSALS = ("429", "503")
"""Statuses of calls that another time could have been served."""


def build_app(service: Service, front: Front = OPEN) -> web.Application:
    """The whole HTTP surface of one service."""
    app = web.Application(middlewares=MIDDLEWARES, client_max_size=service.limits.max_body_bytes)
    app[SERVICE] = service
    app[LIFE] = Life()
    app[ACCESS] = front.access
    app[ORIGINS] = front.origins
    if front.hosts is not None:
        app[HOSTS] = front.hosts
    app[PAGE] = Page()
    app[REGISTER] = Register(service.dispatcher)
    app[DOCUMENT] = encoded()
    if front.tracing is not None:
        app[TRACING] = front.tracing
        app.on_cleanup.append(front.tracing.close)
    app.add_routes(ROUTES)
    app.on_startup.append(remember_start)
    app.on_shutdown.append(close_feed)
    app.on_response_prepare.append(_add_headers)
    app.on_response_prepare.append(tell_origins)
    return app


class Index(msgspec.Struct, frozen=True):
    """What a visitor of / finds."""

    name: str
    version: str
    model: str
    endpoints: list[str]


async def index(request: web.Request) -> web.Response:
    """The dashboard for browsers; for all others, the names of the endpoints."""
    if wants_page(request):
        return request.app[PAGE].front(request)
    endpoints = [f"{route.method} {route.path.replace(':.+', '')}" for route in ROUTES]
    response = json_response(Index("Lengthwise", VERSION, request.app[SERVICE].model_id, endpoints))
    response.headers["Vary"] = "Accept"
    return response


ROUTES = (
    web.get("/", index),
    web.get("/dashboard/events", events),
    web.get("/dashboard/{name}", part),
    web.post("/v1/chat/completions", chat_completions),
    web.post("/v1/completions", completions),
    web.post("/v1/responses", responses),
    web.get("/v1/requests", list_requests),
    web.get("/v1/requests/{id}", show_request),
    web.post("/v1/requests/{id}/cancel", cancel_request),
    web.post("/tokenize", tokenize),
    web.post("/detokenize", detokenize),
    web.get("/v1/models", list_models),
    web.get("/v1/models/{model:.+}", show_model),
    web.get("/openapi.json", openapi),
    web.get("/metrics", metrics),
    web.get("/health", ready),
    web.get("/health/live", live),
    web.get("/health/ready", ready),
)


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "Lengthwise"
    response.headers[HEADER] = request_id(request)


@web.middleware
async def log_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Log each request when it ends."""
    start = time.monotonic()
    status = "client gone"
    remember_id(request)
    try:
        response = await handler(request)
        status = str(response.status)
        return response
    finally:
        _log_end(request, status, time.monotonic() - start)


MIDDLEWARES = (log_requests, trace_calls, errors_as_json, guard_hosts, guard_origins, authenticate, admit, ration)
"""From the outside inwards: what turns a call away comes before what reads it."""


def _log_end(request: web.Request, status: str, seconds: float) -> None:
    path = request.rel_url.raw_path  # still percent-encoded: it could hold line breaks
    level = logging.DEBUG if path.startswith(POLLED) else logging.INFO
    milliseconds = round(seconds * 1000)
    fields = with_fields(
        method=request.method, path=path, status=status, duration_ms=milliseconds, error=error_code(request)
    )
    log.log(level, "%s %s %s %d ms %s", request.method, path, status, milliseconds, request_id(request), extra=fields)
    _count(request, status)


def _count(request: web.Request, status: str) -> None:
    counted = request.app[SERVICE].metrics
    if counted is None:
        return
    resource = request.match_info.route.resource
    counted.responded(request.method, "unknown" if resource is None else resource.canonical, status)
    code = error_code(request)
    if status in REFUSALS and code is not None and generates(request):
        counted.refused(code)
