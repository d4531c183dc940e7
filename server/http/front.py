"""The parts between the network and the endpoints, from the configuration: keys, origins, certificate, connections."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from server.cli.config import ConfigError, FrontConfig
from server.http.access import Access, Quota
from server.http.cors import Hosts, Origins, local_hosts
from server.http.keys import load_keys
from server.http.listener import ConnectionLimits
from server.observe.tracing import Tracing, tracing_to
from server.process.port import is_loopback

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Front:
    """By default open to all that can connect, but to no page of another origin."""

    access: Access = field(default_factory=Access)
    origins: Origins = field(default_factory=Origins)
    hosts: Hosts | None = None
    """Names under which it answers; None for any."""
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    tls: ssl.SSLContext | None = None
    tracing: Tracing | None = None
    """Where spans of calls go; None for nowhere."""


OPEN = Front()


def build_front(config: FrontConfig, environ: Mapping[str, str]) -> Front:
    """The front of a server with these settings; raises ConfigError."""
    keys = load_keys(config.api_key, config.api_key_file, environ)
    return Front(
        access=Access(
            keys, Quota(config.requests_per_minute, config.max_concurrent_requests, config.tokens_per_minute)
        ),
        origins=Origins(
            frozenset(config.allowed_origins),
            config.allowed_methods,
            config.allowed_headers,
            config.allow_credentials,
        ),
        hosts=_hosts(config) if not len(keys) else None,
        connections=ConnectionLimits(config.max_connections, config.send_timeout),
        tls=tls_context(config.ssl_certfile, config.ssl_keyfile),
        tracing=None if config.otlp_traces_endpoint is None else tracing_to(config.otlp_traces_endpoint),
    )


def reread(front: Front, config: FrontConfig, environ: Mapping[str, str]) -> None:
    """Take keys and certificate anew from where they came from, both or neither; raises ConfigError.

    Quotas stay, and so do the weights by which service is shared out. Connections that are open keep their certificate.
    """
    keys = load_keys(config.api_key, config.api_key_file, environ)
    tls_context(config.ssl_certfile, config.ssl_keyfile)  # tried apart: a chain without its key would be half taken
    if front.tls is not None and config.ssl_certfile is not None:
        front.tls.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=_refuse)
    front.access.keys.replace(keys)


def _hosts(config: FrontConfig) -> Hosts | None:
    """Host names to answer as; None where other machines can reach the server, or no browser can."""
    if config.uds is not None or not is_loopback(config.host):
        return None
    return local_hosts(config.host, config.allowed_hosts)


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The context of a server for TLS 1.2 and later; None without a certificate. Raises ConfigError."""
    if certificate is None:
        if key is not None:
            raise ConfigError("--ssl-keyfile needs --ssl-certfile")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=_refuse)
    except OSError as error:  # ssl.SSLError among them
        raise ConfigError(_explain(error, certificate, key)) from None
    return context


def _refuse() -> str:
    """Give no password, as a service has no terminal to ask for one."""
    return ""


def _explain(error: OSError, certificate: Path, key: Path | None) -> str:
    files = str(certificate) if key is None else f"{certificate} and {key}"
    reason = getattr(error, "reason", None) or error.strerror or "unknown reason"
    remedy = "give PEM files, the certificate's chain and its key without a password, that this user may read"
    return f"--ssl-certfile/--ssl-keyfile: {files} cannot be used ({reason}): {remedy}"


@contextmanager
def reload_on_hangup(front: Front, config: FrontConfig, environ: Mapping[str, str]) -> Iterator[None]:
    """Read keys and certificate anew at each SIGHUP; where they cannot be used, those from before stay.

    On a terminal SIGHUP ends the process, as ever: it means that the terminal is gone. Event loop's thread only.
    """
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
        reread(front, config, environ)
    except ConfigError as error:
        log.error("SIGHUP: keys and certificate stay as they were: %s", error)
    else:
        certificate = "no certificate" if front.tls is None else "the certificate"
        log.info("SIGHUP: read %d keys and %s anew", len(front.access.keys), certificate)
