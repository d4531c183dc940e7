"""A cluster's settings, and its servers'."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from models.errors import UserError
from models.options import Count, NonNegative, option
from server.config import ServeConfig
from server.http.port import is_loopback
from server.keys import Keyring, read_keys
from server.settings import CommandLine, add_settings, read_settings


@dataclass(frozen=True, kw_only=True)
class Cluster:
    nodes: Count = option(1, "servers")
    cpus: NonNegative = option(1.0, "CPUs that Ray sets aside for each; all of a machine's: one a machine")
    gpus: NonNegative = option(0.0, "GPUs that Ray gives each")
    router: str = option("work")
    """work: to the server that is expected to be done first; else the import path of a request router of Ray Serve"""
    host: str = option("127.0.0.1", "address on which the proxy listens")
    port: Annotated[int, Meta(ge=1, le=65535)] = option(8000, "port on which it listens")
    address: str | None = option(None, "Ray cluster to join, as `auto`; default: one on this machine, ended with this")


@dataclass(frozen=True, slots=True)
class Servers:
    """Of all servers of a cluster."""

    flags: tuple[str, ...]  # of `lengthwise serve`
    key: str | None  # one of their API keys
    config: ServeConfig  # what the flags say
    keys: Keyring
    hosts: frozenset[str] | None  # under which the proxy answers; None: any


def read_servers(flags: Sequence[str], host: str) -> Servers:
    """Check flags before a server starts; raises UserError. `host`: where the proxy listens."""
    from server.http.front import local_hosts  # aiohttp, which --help does without

    parser = CommandLine(prog="lengthwise serve")
    add_settings(parser, ServeConfig)
    config = read_settings(ServeConfig, parser.parse_args(flags))
    if config.ssl_certfile is not None:
        raise UserError("--ssl-certfile: servers behind Ray's proxy speak plain HTTP; end TLS before the proxy")
    keys = read_keys(config.api_key, config.api_key_file, os.environ)
    local = is_loopback(host) and not keys
    hosts = local_hosts(host, config.allowed_hosts) if local else None
    return Servers(tuple(flags), next(iter(keys), None), config, Keyring(keys), hosts)
