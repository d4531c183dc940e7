"""Pages of other origins in a browser: which may read answers, and that the others cannot make calls behind its back.

A server on a user's own machine can be reached by any page that the user opens. Browsers keep such a page from reading
answers, unless it is allowed to, but let it send: so what changes anything is refused to it here.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

from server.api.errors import ApiError
from server.cli.settings import ConfigError

ANY = "*"
HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})
FOREIGN = frozenset({"cross-site", "same-site"})
"""Values of Sec-Fetch-Site, which only a browser can set, for pages of other origins."""
EXPOSED = "x-request-id, Retry-After, retry-after-ms"
"""Headers of answers that pages may read, beside the usual ones."""
REMEMBERED = "600"
"""Seconds for which a browser may remember what it was allowed."""


@dataclass(frozen=True, slots=True)
class Origins:
    """Rights of pages of other origins; by default none."""

    allowed: frozenset[str] = frozenset()
    methods: tuple[str, ...] = (ANY,)
    headers: tuple[str, ...] = (ANY,)
    credentials: bool = False

    def __post_init__(self) -> None:
        if self.credentials and ANY in self.allowed:
            raise ConfigError("--allow-credentials needs --allowed-origins that are named one by one, not *")

    def allows(self, origin: str) -> bool:
        return ANY in self.allowed or origin in self.allowed


ORIGINS = web.AppKey("origins", Origins)


@web.middleware
async def guard_origins(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a browser's question whether a page may call, and refuse calls of those that may not."""
    origins, origin = request.app[ORIGINS], request.headers.get("Origin")
    if origin is None:
        return await handler(request)
    if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
        return _preflight(request, origins, origin)
    if _foreign(request, origin) and request.method not in HARMLESS and not origins.allows(origin):
        raise _refusal()
    return await handler(request)


def _foreign(request: web.Request, origin: str) -> bool:
    """Whether a page of another origin calls. Browsers tell so only over https and on localhost: else compare names."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in FOREIGN
    return origin.partition("://")[2].lower() != request.headers.get("Host", "").strip().lower()


async def add_origin_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Say on each response which page may read it."""
    origins, origin = request.app[ORIGINS], request.headers.get("Origin")
    if not origins.allowed:
        return
    response.headers.add("Vary", "Origin")
    if origin is not None and origins.allows(origin):
        response.headers["Access-Control-Allow-Origin"] = ANY if ANY in origins.allowed else origin
        response.headers["Access-Control-Expose-Headers"] = EXPOSED
        if origins.credentials:
            response.headers["Access-Control-Allow-Credentials"] = "true"


def _preflight(request: web.Request, origins: Origins, origin: str) -> web.Response:
    if not origins.allows(origin):
        raise _refusal()
    wanted_method = request.headers["Access-Control-Request-Method"]
    wanted_headers = request.headers.get("Access-Control-Request-Headers", "")
    headers = {"Access-Control-Max-Age": REMEMBERED}
    # * is spelled out: to browsers it means neither Authorization nor anything of a request with credentials.
    headers["Access-Control-Allow-Methods"] = wanted_method if ANY in origins.methods else ", ".join(origins.methods)
    headers["Access-Control-Allow-Headers"] = wanted_headers if ANY in origins.headers else ", ".join(origins.headers)
    return web.Response(status=204, headers=headers)


def _refusal() -> ApiError:
    message = "pages of this origin may not call this server; --allowed-origins names those that may"
    return ApiError(403, message, code="origin_not_allowed")
