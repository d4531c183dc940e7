"""The pages: at / the dashboard for browsers, the list of endpoints for all others; at /chat the chat; and their parts.

The files are read once, at the start. They load nothing from elsewhere, and their policy forbids it.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
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


class Page:
    """The files of the pages by name, read once, and the answers with them."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in TYPES}

    def front(self, request: web.Request) -> web.Response:
        """The dashboard, which browsers get where others get JSON."""
        response = self.response(request, "index.html")
        response.headers["Vary"] = "Accept"
        return response

    def response(self, request: web.Request, name: str) -> web.Response:
        """One file; raises HTTPNotFound."""
        content = self._files.get(name)
        if content is None:
            raise web.HTTPNotFound
        tag = sha256(content).hexdigest()[:32]
        if any(known.value == tag for known in request.if_none_match or ()):
            response = web.Response(status=304, headers=HEADERS)
        else:
            kind = TYPES[Path(name).suffix]
            response = web.Response(body=content, content_type=kind, charset="utf-8", headers=HEADERS)
        response.etag = tag
        return response


PAGE = web.AppKey("page", Page)
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


async def index(request: web.Request) -> web.Response:
    """Send a browser the dashboard, all others the names of the endpoints."""
    if wants_page(request):
        return request.app[PAGE].front(request)
    routes = [(route.method, route.resource) for route in request.app.router.routes() if route.method != METH_HEAD]
    endpoints = [f"{method} {resource.canonical}" for method, resource in routes if resource is not None]
    response = json_response(Index("Lengthwise", VERSION, request.app[NAME], endpoints))
    response.headers["Vary"] = "Accept"
    return response


async def send_chat(request: web.Request) -> web.Response:
    """Answer with the page for conversations."""
    return request.app[PAGE].response(request, "chat.html")


async def send_file(request: web.Request) -> web.Response:
    """Answer with a file that the page asks for."""
    return request.app[PAGE].response(request, request.match_info["name"])
