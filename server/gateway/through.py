"""Calls that take no turn, passed on at once: models, embeddings, sound, and what a backend keeps for its clients."""

from __future__ import annotations

import aiohttp
from aiohttp import web

from server.api.errors import ApiError
from server.api.input.body import hold_body
from server.api.served_model import DISPATCHER
from server.api.ticket import TICKET
from server.gateway.asking import BACKENDS, are_one, ask, plain_path, refuse_kept
from server.gateway.backend import Backend
from server.gateway.meta import BYTES_PER_TOKEN, MOST_PROMPT
from server.http.proxy import replied_headers

KEEPING = frozenset(
    {
        *("files", "uploads", "batches", "responses", "conversations", "threads", "assistants", "vector_stores"),
        *("containers", "fine_tuning", "videos"),
    }
)
"""What paths below /v1 begin with that show or change what a backend keeps for who called before."""

MINGLED = frozenset({"chat", "messages", "requests"})  # beginnings of paths of which some do so


async def pass_other(request: web.Request) -> web.StreamResponse:
    """Pass on a call to a path that shows what a backend keeps, or that is not known; raises ApiError 400, 403, 404
    or 503."""
    path, settings = plain_path(request), request.app[BACKENDS]
    first = path.split("/")[2]
    if first in KEEPING | MINGLED and are_one(request.app):
        raise refuse_kept(path)
    if first not in KEEPING and not settings.pass_unknown:
        raise ApiError(404, f"{path} is none of the paths that are passed on (GET / lists them; --pass-unknown)")
    return await pass_through(request)


async def pass_through(request: web.Request) -> web.StreamResponse:
    """Pass on a call that takes no turn, such as the list of models, to a backend that answers; raises ApiError 400,
    502 or 503."""
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
