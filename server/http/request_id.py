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
        given = request.headers.get(HEADER, "")  # whose line breaks and escape sequences would end up in logs
        request[_KEY] = "".join(char for char in given if "!" <= char <= "~")[:LONGEST] or secrets.token_hex(16)
    return request[_KEY]


def current_id() -> str | None:
    """The id of the request that the running task serves; None elsewhere."""
    return _CURRENT.get()


def remember_id(request: web.BaseRequest) -> None:
    """From here on, the running task serves this request."""
    _CURRENT.set(request_id(request))
