"""The application: which path leads to which handler, and what every response carries."""

from __future__ import annotations

import logging
import time

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from server.answer import json_response
from server.chat import chat_completions
from server.completions import completions
from server.errors import errors_as_json
from server.health import LIFE, Life, live, ready
from server.listing import list_models, remember_start, show_model
from server.metrics import metrics
from server.request_id import HEADER, request_id
from server.service import SERVICE, Service
from server.version import VERSION

log = logging.getLogger(__name__)


def build_app(service: Service) -> web.Application:
    """The whole HTTP surface of one service."""
    app = web.Application(middlewares=[log_requests, errors_as_json], client_max_size=service.limits.max_body_bytes)
    app[SERVICE] = service
    app[LIFE] = Life()
    app.add_routes(ROUTES)
    app.on_startup.append(remember_start)
    app.on_response_prepare.append(_add_headers)
    return app


class Index(msgspec.Struct, frozen=True):
    """What a visitor of / finds."""

    name: str
    version: str
    model: str
    endpoints: list[str]


async def index(request: web.Request) -> web.Response:
    """Name the endpoints."""
    endpoints = [f"{route.method} {route.path.replace(':.+', '')}" for route in ROUTES]
    return json_response(Index("Lengthwise", VERSION, request.app[SERVICE].model_id, endpoints))


ROUTES = (
    web.get("/", index),
    web.post("/v1/chat/completions", chat_completions),
    web.post("/v1/completions", completions),
    web.get("/v1/models", list_models),
    web.get("/v1/models/{model:.+}", show_model),
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
    try:
        response = await handler(request)
        status = str(response.status)
        return response
    finally:
        _log_end(request, status, time.monotonic() - start)


def _log_end(request: web.Request, status: str, seconds: float) -> None:
    path = request.rel_url.raw_path  # still percent-encoded: it could hold line breaks
    level = logging.DEBUG if path.startswith("/health") else logging.INFO  # probes come every few seconds
    log.log(level, "%s %s %s %.0f ms %s", request.method, path, status, seconds * 1000, request_id(request))
