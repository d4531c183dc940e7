"""The pages: at / the dashboard for browsers, the list of endpoints for all others; at /chat the chat; and their parts.

The files load nothing from elsewhere, and their policy forbids it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
from aiohttp import web
from aiohttp.hdrs import METH_HEAD

from server.api.output.reply import json_response
from server.version import VERSION

FOLDER = Path(__file__).parents[1] / "dashboard" / "static"
TYPES: Mapping[str, str] = MappingProxyType(
    {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
)
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",  # asked for again each time, answered by 304 as long as nothing has changed
    }
)


def _file(name: str) -> web.FileResponse:
    """The answer with one file, or that it is still what the client has; raises HTTPNotFound."""
    path = FOLDER / name
    if path.parent != FOLDER or path.suffix not in TYPES or not path.is_file():
        raise web.HTTPNotFound
    return web.FileResponse(path, headers={**HEADERS, "Content-Type": f"{TYPES[path.suffix]}; charset=utf-8"})


NAME = web.AppKey("name", str)
"""The name of what is served."""


def wants_page(request: web.Request) -> bool:
    """Whether the client is a browser that shows pages; `curl` and libraries accept anything, or JSON."""
    return "text/html" in request.headers.get("Accept", "")


class Index(msgspec.Struct, frozen=True):
    """The body of GET / for programs."""

    name: str
    version: str
    model: str
    endpoints: list[str]


async def index(request: web.Request) -> web.StreamResponse:
    """Send a browser the dashboard, all others the names of the endpoints."""
    if wants_page(request):
        page = _file("index.html")
        page.headers["Vary"] = "Accept"
        return page
    routes = [(route.method, route.resource) for route in request.app.router.routes() if route.method != METH_HEAD]
    endpoints = [f"{method} {resource.canonical}" for method, resource in routes if resource is not None]
    response = json_response(Index("Lengthwise", VERSION, request.app[NAME], endpoints))
    response.headers["Vary"] = "Accept"
    return response


async def send_chat(request: web.Request) -> web.FileResponse:
    """Answer with the page for conversations."""
    return _file("chat.html")


async def send_file(request: web.Request) -> web.FileResponse:
    """Answer with a file that the page asks for."""
    return _file(request.match_info["name"])
