"""Health probes, which never queue, GET /load for routers (scheduler/placement.py), and GET /v1/models."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from aiohttp import web

from scheduler.dispatcher import Dispatcher
from scheduler.waiting.prices import Prices
from server.api.errors import ApiError, shutting_down
from server.api.output.reply import json_response
from server.api.served_model import DISPATCHER, MODEL, model_name


@dataclass(slots=True)
class Life:
    responsive: Callable[[], bool]  # whether busy executors progress
    draining: bool = False  # set by server/process/life.py


LIFE = web.AppKey("life", Life)


class Health(msgspec.Struct, frozen=True):
    """A good answer to a probe."""

    status: str


class Readiness(msgspec.Struct, frozen=True):
    """A good answer to GET /health, with what is under way."""

    status: str
    requests_waiting: int
    requests_running: int


async def live(request: web.Request) -> web.Response:
    """Tell that the process answers; needs no key."""
    return json_response(Health("ok"))


async def ready(request: web.Request) -> web.Response:
    """Tell whether a request would be taken; needs no key; raises ApiError 503."""
    _require_ready(request)
    return json_response(Health("ok"))


async def health(request: web.Request) -> web.Response:
    """Tell whether a request would be taken, and how many are under way; raises ApiError 503."""
    dispatcher = _require_ready(request)
    return json_response(Readiness("ok", dispatcher.table.requests_waiting, dispatcher.table.requests_running))


def _require_ready(request: web.Request) -> Dispatcher:
    life, dispatcher = request.app[LIFE], request.app[DISPATCHER]
    if life.draining:
        raise shutting_down()
    if not dispatcher.alive:
        fault = "no executor is alive" if MODEL in request.app else "no backend answers"
        raise ApiError(503, fault, code="no_executor")
    if not life.responsive():
        raise ApiError(503, "no executor goes on with its work", code="executor_stalled")
    return dispatcher


class Load(msgspec.Struct, frozen=True):
    """The server's load as it was `age_s` seconds ago: seconds until all that it had would be answered, prices of rows,
    how many requests that were, the rows that it runs at a time, and tokens of its recent answers, null before the
    first."""

    age_s: float
    work_s: float
    prices: Prices
    requests: int
    slots: int
    mean_output_tokens: float | None


async def load(request: web.Request) -> web.Response:
    """Tell how much there is to do, and what a request would add to that."""
    dispatcher = request.app[DISPATCHER]
    told = dispatcher.waits.load()
    age = dispatcher.now() - told.at
    return json_response(Load(age, told.work, told.prices, told.requests, told.slots, told.length))


CREATED = web.AppKey("created", int)  # when the model came up, Unix seconds


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One name of the model."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "lengthwise"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True):
    """All names of the model."""

    data: list[ModelCard]
    object: str = "list"


async def list_models(request: web.Request) -> web.Response:
    """List the model that is served, under each of its names."""
    return json_response(ModelList([_card(name, request.app) for name in request.app[MODEL].names]))


async def show_model(request: web.Request) -> web.Response:
    """Describe one name of the model; raises ApiError 404 for another's name."""
    return json_response(_card(model_name(request.match_info["model"], request.app[MODEL]), request.app))


def _card(name: str, app: web.Application) -> ModelCard:
    model = app[MODEL]
    return ModelCard(id=name, created=app[CREATED], root=model.root, max_model_len=model.context_length)
