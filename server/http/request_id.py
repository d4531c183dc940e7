"""The id that a request has in its response and in the log: the client's own, where it is fit to be printed."""

from __future__ import annotations

import secrets
from contextvars import ContextVar

from aiohttp import web

HEADER = "x-request-id"
LONGEST = 128
_KEY = web.RequestKey("request_id", str)
_CURRENT: ContextVar[str | None] = ContextVar("request_id", default=None)


def request_id(request: web.BaseRequest) -> str:
    """The request's id, the same at every call: printable ASCII, at most LONGEST characters."""
    if _KEY not in request:
        request[_KEY] = _sanitised(request.headers.get(HEADER, "")) or secrets.token_hex(16)
    return request[_KEY]


def current_id() -> str | None:
    """The id of the request that the running task serves; None elsewhere."""
    return _CURRENT.get()


def remember_id(request: web.BaseRequest) -> None:
    """From here on, the running task serves this request."""
    _CURRENT.set(request_id(request))


def _sanitised(text: str) -> str:
    """The printable part of an id: line breaks and escape sequences would end up in the logs of others."""
    return "".join(char for char in text if "!" <= char <= "~")[:LONGEST]
