"""Typed structures to the bytes that go over the wire."""

from __future__ import annotations

import msgspec
import orjson
from aiohttp import web


def encode(body: msgspec.Struct) -> bytes:
    """JSON of a response or an event."""
    return orjson.dumps(msgspec.to_builtins(body))


def json_response(body: msgspec.Struct, status: int = 200) -> web.Response:
    """A structure as a whole response."""
    return web.Response(body=encode(body), status=status, content_type="application/json")
