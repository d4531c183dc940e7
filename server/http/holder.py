"""Whose a request is, where API keys tell clients apart: noted by who checks keys, read by who keeps clients apart."""

from __future__ import annotations

from aiohttp import web

HOLDER = web.RequestKey("holder", str)


def holder_of(request: web.Request) -> str | None:
    """A name for whoever sent a request; None where nobody checked."""
    return request.get(HOLDER)
