"""GET /v1/models and /v1/models/{id}: the model that is served, under each of its names."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from aiohttp import web

from server.api.errors import ApiError
from server.api.output.reply import json_response
from server.api.served_model import MODEL, ServedModel

CREATED = web.AppKey("created", int)
"""When the model came up, in seconds since 1970."""


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


def model_name(asked: str | None, model: ServedModel) -> str:
    """The model's name as the client knows it, its id when none was given; raises ApiError 404 for another's."""
    if asked is None:
        return model.id
    if asked not in model.names and model.accepts_any_name:
        return model.id
    if asked not in model.names:
        raise unknown_model(asked, model.names)
    return asked


def unknown_model(asked: str, known: Sequence[str]) -> ApiError:
    """Status 404 for a name that none of `known` is."""
    message = f"model: {asked[:200]!r} is not served here; use {', '.join(known)}"
    return ApiError(404, message, param="model", code="model_not_found")


def _card(name: str, app: web.Application) -> ModelCard:
    model = app[MODEL]
    return ModelCard(id=name, created=app[CREATED], root=model.root, max_model_len=model.context_length)


async def remember_start(app: web.Application) -> None:
    """Note the time at start-up."""
    app[CREATED] = int(time.time())
