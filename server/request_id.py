"""The id that a request has in its response and in the log: the client's own, where it is fit to be printed."""

from __future__ import annotations

import secrets

from aiohttp import web

HEADER = "x-request-id"
LONGEST = 128
_KEY = web.RequestKey("request_id", str)


def request_id(request: web.BaseRequest) -> str:
    """The request's id, the same at every call: printable ASCII, at most LONGEST characters."""
    if _KEY not in request:
        request[_KEY] = _sanitised(request.headers.get(HEADER, "")) or secrets.token_hex(16)
    return request[_KEY]


def _sanitised(text: str) -> str:
    """What others will find in their logs must hold neither line breaks nor escape sequences."""
    return "".join(char for char in text if "!" <= char <= "~")[:LONGEST]
