"""The commands that start servers until a signal ends them: `lengthwise serve`; `lengthwise run`, with a conversation
in the terminal; `lengthwise ray`, several behind Ray Serve's proxy; `lengthwise gateway`, the queue before servers of
others.

They own the flags and the errors. Torch, aiohttp and ray are imported only when a command needs them.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import tempfile
from importlib.util import find_spec
from math import inf
from pathlib import Path

from loadgen.compare.server import ServerFailure, run_server
from loadgen.result_file import PROGRAM
from models.errors import UserError
from models.options import Subparsers, add_options, describe, options_of, read_options
from server.cli.commands import chat
from server.cli.commands.doctor import require_startable
from server.cli.config import GatewayConfig, ServeConfig
from server.cli.settings import add_configured, add_settings, find_strangers, read_settings
from server.composition.cache_paths import fetch_model, require_writable
from server.deploy.settings import Cluster, read_servers
from server.process.port import is_loopback
from server.process.setup import exit_on, tune_libraries

ELSEWHERE = ("CONFIG", "CACHE")
"""Variables that are read though they are no settings: the file with settings, and the cache folder."""


def add_parsers(subparsers: Subparsers) -> None:
    """Add the commands and their flags to the program's own."""
    add_configured(subparsers, "serve", ServeConfig, run)
    add_configured(subparsers, "gateway", GatewayConfig, run_gateway)
    parser = subparsers.add_parser("run", **describe(run_and_talk))
    add_options(parser.add_argument_group("The conversation"), options_of(chat.Talk))
    add_settings(parser, ServeConfig)
    parser.set_defaults(run=run_and_talk)
    parser = subparsers.add_parser("ray", **describe(run_ray))
    add_options(parser, options_of(Cluster))
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="behind --: model and flags of `lengthwise serve`")
    parser.set_defaults(run=run_ray)


def run(config: ServeConfig) -> int:
    """Serve a model over HTTP, as OpenAI's API does.

    Every flag is also a variable (LENGTHWISE_MAX_NUM_SEQS) and a key of the --config file (max_num_seqs); the command
    line wins.

    Example: lengthwise serve --port 8000
    """
    for stranger in find_strangers(ServeConfig, os.environ, ELSEWHERE):
        print(f"lengthwise: warning: {stranger}", file=sys.stderr)
    require_startable(config)
    tune_libraries(os.environ)
    if sys.stderr.isatty():
        print(f"Loading {config.model}, which takes from seconds to a minute ...", file=sys.stderr, flush=True)
    # These import torch, which other commands and --help can do without.
    from server.composition.app import fetch, open_service
    from server.process.life import serve

    return serve(config, fetch, open_service)


STOP_TIMEOUT = 40.0
"""Seconds that the server may take to end, of which a last answer may take 30."""


def run_gateway(config: GatewayConfig) -> int:
    """Queue calls for servers that run already.

    They have OpenAI's API, as vLLM, SGLang, llama.cpp and Ollama do; each call is sent on when one of them has room
    for it. See docs/gateway.md.

    Example: lengthwise gateway --backend http://127.0.0.1:8001/v1
    """
    from server.composition.gateway import check_backends, open_gateway
    from server.process.life import serve

    check_backends(config)
    require_writable(None if config.no_journal else config.journal)
    return serve(config, lambda _: None, open_gateway)


def run_and_talk(args: argparse.Namespace) -> int:
    """Start a server and talk to it, in one.

    Serves a model on a free port and talks to it in this terminal; the server ends with the conversation. Flags,
    variables and --config file as for `lengthwise serve`.

    Example: lengthwise run
    """
    config = read_settings(ServeConfig, args)
    fetch_model(config)  # here, where its progress is seen
    conversation = argparse.ArgumentParser()
    add_options(conversation, options_of(chat.Talk))
    _, flags = conversation.parse_known_args(args.words)
    with (
        exit_on(signal.SIGTERM, signal.SIGHUP),
        tempfile.TemporaryDirectory(prefix="lengthwise-run-") as folder,
    ):
        log = Path(folder) / "server.log"
        print(f"Loading {config.model} ...", flush=True)
        try:
            with run_server([*PROGRAM, "serve", "--port", "0", *flags], log, inf, STOP_TIMEOUT) as server:
                print(f"Serving it at {server.url}, with a dashboard there, until you leave.", flush=True)
                how, key = read_options(args, chat.Talk), next(iter(config.api_key), None)
                return chat.run(chat.Chat(url=server.url, api_key=key, **vars(how)))
        except ServerFailure as error:
            raise UserError(str(error)) from None


def run_ray(args: argparse.Namespace) -> int:
    """Serve from several machines, behind Ray Serve.

    Starts several servers behind Ray Serve's proxy, which sends each request where it is expected to be done first;
    needs lengthwise[ray]. See docs/scale-out.md.

    Example: lengthwise ray -- smollm2-135m-instruct
    """
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
