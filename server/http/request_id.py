"""The id that a request has in its response and in the log: the client's own, where it is fit to be printed."""

from __future__ import annotations

import secrets
from contextvars import ContextVar

from aiohttp import web

HEADER = "x-request-id"
LONGEST = 128
REQUEST_ID = web.RequestKey("request_id", str)
CURRENT_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that the running task serves; None elsewhere."""


def request_id(request: web.BaseRequest) -> str:
    """The request's id, the same at every call: printable ASCII, at most LONGEST characters."""
    if REQUEST_ID not in request:
        given = request.headers.get(HEADER, "")  # whose line breaks and escape sequences would end up in logs
        request[REQUEST_ID] = "".join(char for char in given if "!" <= char <= "~")[:LONGEST] or secrets.token_hex(16)
    return request[REQUEST_ID]
