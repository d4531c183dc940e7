"""The HTTP front: keys, origins, certificate, connections."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.typedefs import Handler

from server.access import HOLDER, Access, Quota, check_key
from server.api.errors import ApiError
from server.api.operation import OPERATION
from server.config import ConfigError, FrontConfig
from server.http.port import is_loopback
from server.keys import load_keys
from server.observe.tracing import tracing_to

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ANY = "*"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
FOREIGN = frozenset({"cross-site", "same-site"})  # Sec-Fetch-Site, set by browsers only
EXPOSED = "x-request-id, Retry-After, retry-after-ms"  # readable by pages
REMEMBERED = "600"  # seconds of preflight caching


def _foreign(request: web.Request, origin: str) -> bool:
    """Browsers send Sec-Fetch-Site over https and on localhost only: else compare names."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in FOREIGN
    return origin.partition("://")[2].lower() != request.headers.get("Host", "").strip().lower()


async def add_origin_headers(request: web.Request, response: web.StreamResponse) -> None:
    settings, origin = request.app[FRONT].settings, request.headers.get("Origin")
    if not settings.allowed_origins:
        return
    response.headers.add("Vary", "Origin")
    if origin is not None and _allows(settings, origin):
        response.headers["Access-Control-Allow-Origin"] = ANY if ANY in settings.allowed_origins else origin
        response.headers["Access-Control-Expose-Headers"] = EXPOSED
        if settings.allow_credentials:
            response.headers["Access-Control-Allow-Credentials"] = "true"


def _allows(settings: FrontConfig, origin: str) -> bool:
    return ANY in settings.allowed_origins or origin in settings.allowed_origins


def _preflight(request: web.Request, settings: FrontConfig) -> web.Response:
    wanted_method = request.headers["Access-Control-Request-Method"]
    wanted_headers = request.headers.get("Access-Control-Request-Headers", "")
    headers = {"Access-Control-Max-Age": REMEMBERED}
    # Spelled out: * excludes Authorization and credentials.
    methods, names = settings.allowed_methods, settings.allowed_headers
    headers["Access-Control-Allow-Methods"] = wanted_method if ANY in methods else ", ".join(methods)
    headers["Access-Control-Allow-Headers"] = wanted_headers if ANY in names else ", ".join(names)
    return web.Response(status=204, headers=headers)


LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})


Hosts = frozenset[str]  # lower case, no ports


def local_hosts(bound: str, more: Iterable[str]) -> Hosts:
    """Of this machine, the listening address and the user's."""
    host = bound if ":" not in bound or bound.startswith("[") else f"[{bound}]"
    return LOCAL | {name_of(name) for name in (host, *more)}


def name_of(host: str) -> str:
    name, colon, port = host.strip().lower().rpartition(":")
    return (name if colon and (port.isdigit() or not port) else host.strip().lower()).removesuffix(".")


def check_host(hosts: Hosts, host: str) -> None:
    """Raises ApiError 421 for a foreign Host; calls without one are no browser's."""
    if host and (name := name_of(host)) not in hosts:
        message = f"this server does not answer as {name[:256]!r}; --allowed-hosts names the hosts that it answers as"
        raise ApiError(421, message, code="host_not_allowed")


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Front:
    """Open by default, except to foreign origins."""

    access: Access = field(default_factory=Access)
    settings: FrontConfig = field(default_factory=FrontConfig)
    hosts: Hosts | None = None  # None for any
    tls: ssl.SSLContext | None = None
    tracing: TracerProvider | None = None  # None without tracing


OPEN = Front()

FRONT = web.AppKey("front", Front)


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: hosts, origins, keys, preflights."""
    front, origin = request.app[FRONT], request.headers.get("Origin")
    if front.hosts is not None:
        check_host(front.hosts, request.headers.get("Host", ""))
    if origin is not None:
        asks = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        calls = request.method not in SAFE_METHODS and _foreign(request, origin)
        if (asks or calls) and not _allows(front.settings, origin):
            message = "pages of this origin may not call this server; --allowed-origins names those that may"
            raise ApiError(403, message, code="origin_not_allowed")
        if asks:
            return _preflight(request, front.settings)
    if front.access.keys.shares and not request[OPERATION].open:
        request[HOLDER] = check_key(front.access.keys, request.headers)
    return await handler(request)


def build_front(config: FrontConfig, environ: Mapping[str, str]) -> Front:
    """Raises ConfigError."""
    if config.allow_credentials and ANY in config.allowed_origins:
        raise ConfigError("--allow-credentials needs --allowed-origins that are named one by one, not *")
    if config.uds_mode is not None and config.uds is None:
        raise ConfigError("--uds-mode needs --uds")
    keys, endpoint = load_keys(config.api_key, config.api_key_file, environ), config.otlp_traces_endpoint
    # Unless other machines, or no browser, can reach the server.
    checked = not len(keys) and config.uds is None and is_loopback(config.host)
    hosts = local_hosts(config.host, config.allowed_hosts) if checked else None
    tls = tls_context(config.ssl_certfile, config.ssl_keyfile)
    tracing = None if endpoint is None else tracing_to(endpoint)
    return Front(Access(keys, Quota(config)), config, hosts, tls, tracing)


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """TLS 1.2 or later; None without a certificate. Raises ConfigError."""
    if certificate is None:
        if key is not None:
            raise ConfigError("--ssl-keyfile needs --ssl-certfile")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:  # including ssl.SSLError
        files = str(certificate) if key is None else f"{certificate} and {key}"
        reason = getattr(error, "reason", None) or error.strerror or "unknown reason"
        remedy = "give PEM files, the certificate's chain and its key without a password, that this user may read"
        raise ConfigError(f"--ssl-certfile/--ssl-keyfile: {files} cannot be used ({reason}): {remedy}") from None
    return context


@contextmanager
def reload_on_hangup(front: Front, config: FrontConfig, environ: Mapping[str, str]) -> Iterator[None]:
    """On SIGHUP, keeping the old ones on errors; on a terminal SIGHUP ends the process."""
    if os.isatty(0):
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, _reload, front, config, environ)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def _reload(front: Front, config: FrontConfig, environ: Mapping[str, str]) -> None:
    try:
        keys = load_keys(config.api_key, config.api_key_file, environ)
        tls_context(config.ssl_certfile, config.ssl_keyfile)  # separately: a chain without its key is half loaded
    except ConfigError as error:
        log.error("SIGHUP: keys and certificate stay as they were: %s", error)
        return
    if front.tls is not None and config.ssl_certfile is not None:
        front.tls.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password="")
    front.access.keys.replace(keys)
    certificate = "no certificate" if front.tls is None else "the certificate"
    log.info("SIGHUP: read %d keys and %s anew", len(keys), certificate)
