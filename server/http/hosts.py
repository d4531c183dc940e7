"""Names under which a server without keys answers on a loopback address: no page shall reach it by one of its own.

A page can make its own domain mean 127.0.0.1 while it is open (DNS rebinding). For the browser it then asks its own
server, so that no check of origins helps; but the name is still in the Host header.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

from server.api.errors import ApiError

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
    hosts, host = request.app.get(HOSTS), request.headers.get("Host", "")
    if hosts is not None and not hosts.allows(host):
        name = name_of(host)[:256]
        message = f"this server does not answer as {name!r}; --allowed-hosts names the hosts that it answers as"
        raise ApiError(421, message, code="host_not_allowed")
    return await handler(request)
