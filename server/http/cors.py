"""Pages in a browser: which may read answers, and that the others cannot make calls behind its user's back.

A server on a user's own machine can be reached by any page that the user opens. Browsers keep such a page from reading
answers, unless it is allowed to, but let it send: so what changes anything is refused to it here. A page can also make
its own domain mean 127.0.0.1 while it is open (DNS rebinding). For the browser it then asks its own server, so that no
check of origins helps; but the name is still in the Host header: a server without keys on a loopback address answers
only by the names of its machine.
"""

from __future__ import annotations

from collections.abc import Iterable
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


LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True)
class Hosts:
    """Host names that may be asked for, without ports and in lower case."""

    allowed: frozenset[str]

    def allows(self, host: str) -> bool:
        """Whether a Host header names one of them. A call without one comes from no browser."""
        return not host or name_of(host) in self.allowed


HOSTS = web.AppKey("hosts", Hosts)


def local_hosts(bound: str, more: Iterable[str]) -> Hosts:
    """The names of this machine alone, the address that is listened on, and those that the user adds."""
    host = bound if ":" not in bound or bound.startswith("[") else f"[{bound}]"
    return Hosts(LOCAL | {name_of(name) for name in (host, *more)})


def name_of(host: str) -> str:
    """A Host header without its port."""
    name, colon, port = host.strip().lower().rpartition(":")
    return (name if colon and (port.isdigit() or not port) else host.strip().lower()).removesuffix(".")


@web.middleware
async def guard_hosts(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse calls by foreign names, where names are checked at all."""
    if (hosts := request.app.get(HOSTS)) is not None:
        check_host(hosts, request.headers.get("Host", ""))
    return await handler(request)


def check_host(hosts: Hosts, host: str) -> None:
    """Raise ApiError 421 for a Host header that names none of these hosts."""
    if not hosts.allows(host):
        name = name_of(host)[:256]
        message = f"this server does not answer as {name!r}; --allowed-hosts names the hosts that it answers as"
        raise ApiError(421, message, code="host_not_allowed")
