"""Request ids for responses and logs: the client's own if printable."""

import secrets
from contextvars import ContextVar

from aiohttp import web

HEADER = "x-request-id"
LONGEST = 128
REQUEST_ID = web.RequestKey("request_id", str)
CURRENT_ID: ContextVar[str | None] = ContextVar("request_id", default=None)  # of the running task; None elsewhere


def request_id(request: web.BaseRequest) -> str:
    """Idempotent: printable ASCII, at most LONGEST characters."""
    if REQUEST_ID not in request:
        given = request.headers.get(HEADER, "")  # would end up in logs
        request[REQUEST_ID] = "".join(char for char in given if "!" <= char <= "~")[:LONGEST] or secrets.token_hex(16)
    return request[REQUEST_ID]
