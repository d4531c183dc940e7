"""`lengthwise ray`: several servers behind Ray Serve's proxy.

It owns the flags and the errors; server/deploy does the work, and imports ray.
"""

from __future__ import annotations

import argparse
import os
import secrets
from importlib.util import find_spec

from models.errors import UserError
from models.flags import Subparsers, add_options, read_options
from models.options import options_of
from server.deploy.settings import Cluster, read_servers
from server.process.port import is_loopback


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "ray",
        help="serve from several machines, behind Ray Serve",
        description="Start several servers behind Ray Serve's proxy, which sends each request where it is expected to "
        "be done first; needs lengthwise[ray]. See docs/scale-out.md.",
    )
    add_options(parser, options_of(Cluster))
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="behind --: model and flags of `lengthwise serve`")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes; returns the exit code. Raises UserError."""
    flags = [word for place, word in enumerate(args.flags) if place or word != "--"]
    cluster = read_options(args, Cluster)
    servers = read_servers(flags, cluster.host)
    if find_spec("ray") is None:
        raise UserError("ray is not installed: pip install 'lengthwise[ray]'")
    if cluster.address is None:
        os.environ |= close_ray(cluster.host) | os.environ
    from server.deploy.ray import serve_until_signal

    serve_until_signal(servers, cluster)
    return 0


def close_ray(host: str) -> dict[str, str]:
    """Variables, read when ray is imported, with which a cluster that it starts wants a token of its own, and with a
    proxy on loopback listens nowhere else.
    """
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    # The name is about other systems; what it does is to let each part take 127.0.0.1 for the machine's address.
    return token | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} if is_loopback(host) else token
