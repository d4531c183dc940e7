"""`lengthwise gateway`: the queue before servers of others, until a signal ends it."""

from __future__ import annotations

import argparse

from models.options import Subparsers
from server.cli.config import GATEWAY_GROUPS, GatewayConfig, read_settings
from server.cli.settings import add_settings
from server.composition.cache_paths import require_writable


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "gateway",
        help="queue calls for servers that run already",
        description="Queue calls for servers with OpenAI's API, such as vLLM, SGLang, llama.cpp and Ollama, and send "
        "each on when one of them has room for it. See docs/gateway.md.",
    )
    add_settings(parser, GATEWAY_GROUPS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Pass calls on until a signal comes; returns the exit code. Raises UserError."""
    config = read_settings(GatewayConfig, args)
    from server.composition.gateway import check_backends, open_gateway
    from server.process.life import serve

    check_backends(config)
    require_writable(None if config.no_journal else config.journal)
    return serve(config, lambda _: None, open_gateway)
