"""GET /health/live, /health/ready, /health: whether the process answers, and whether it takes requests.

Probes never wait in the request queue, so a busy server is not taken for a dead one.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from aiohttp import web

from server.api.calls.failures import shutting_down
from server.api.errors import ApiError
from server.api.output.wire import json_response
from server.api.service import SERVICE


@dataclass(slots=True)
class Life:
    """Where the process is in its life; process.py changes it."""

    draining: bool = False


LIFE = web.AppKey("life", Life)


class Health(msgspec.Struct, frozen=True):
    """A good answer to a probe."""

    status: str


class Readiness(msgspec.Struct, frozen=True):
    """A good answer to a readiness probe, with what is under way."""

    status: str
    requests_waiting: int
    requests_running: int


async def live(request: web.Request) -> web.Response:
    """Always 200: the event loop answered."""
    return json_response(Health("ok"))


async def ready(request: web.Request) -> web.Response:
    """200 when a request would be taken; raises ApiError 503 when the server is going, or no executor works."""
    service = request.app[SERVICE]
    dispatcher = service.dispatcher
    if request.app[LIFE].draining:
        raise shutting_down()
    if not dispatcher.alive:
        raise ApiError(503, "no executor is alive", code="no_executor")
    if not service.responsive():
        raise ApiError(503, "no executor goes on with its work", code="executor_stalled")
    return json_response(Readiness("ok", dispatcher.requests_waiting, dispatcher.requests_running))
