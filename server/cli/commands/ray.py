"""`lengthwise ray`: several servers behind Ray Serve's proxy.

It owns the flags and the errors; server/deploy does the work, and imports ray.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from models.errors import UserError
from models.flags import Subparsers, add_options, read_options
from models.options import options_of
from server.deploy.settings import Cluster, read_servers


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
    servers = read_servers(flags)
    if find_spec("ray") is None:
        raise UserError("ray is not installed: pip install 'lengthwise[ray]'")
    from server.deploy.ray import serve_until_signal

    serve_until_signal(servers, read_options(args, Cluster))
    return 0
