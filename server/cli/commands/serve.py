"""Commands that start servers: `serve`, `run`, `ray` and `gateway`, with late imports of torch, aiohttp and ray."""

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
from models.signals import exit_on
from server.cache_paths import fetch_model, require_writable
from server.cli.commands import chat
from server.cli.commands.doctor import require_startable
from server.config import GatewayConfig, ServeConfig
from server.deploy.settings import Cluster, read_servers
from server.http.port import is_loopback
from server.process.setup import tune_libraries
from server.settings import add_configured, add_settings, find_strangers, read_settings

ELSEWHERE = ("CONFIG", "CACHE")  # variables that are no settings


def add_parsers(subparsers: Subparsers) -> None:
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
    line wins. Durations are seconds.

    Example: lengthwise serve --port 8000
    """
    for stranger in find_strangers(ServeConfig, os.environ, ELSEWHERE):
        print(f"lengthwise: warning: {stranger}", file=sys.stderr)
    require_startable(config)
    tune_libraries(os.environ)
    if sys.stderr.isatty():
        print(f"Loading {config.model}, which takes from seconds to a minute ...", file=sys.stderr, flush=True)
    # torch, not needed for --help
    from server.composition.app import fetch, open_service
    from server.process.life import serve

    return serve(config, fetch, open_service)


STOP_TIMEOUT = 40.0  # seconds for shutdown, 30 of them for a last answer


def run_gateway(config: GatewayConfig) -> int:
    """Queue calls for servers that run already.

    They have OpenAI's API, as vLLM, SGLang, llama.cpp and Ollama do; each call is sent on when one of them has room
    for it. Durations are seconds. See docs/gateway.md.

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
    fetch_model(config)  # with visible progress
    conversation = argparse.ArgumentParser()
    add_options(conversation, options_of(chat.Talk))
    _, flags = conversation.parse_known_args(args.words)
    with exit_on(signal.SIGTERM, signal.SIGHUP), tempfile.TemporaryDirectory(prefix="lengthwise-run-") as folder:
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
    """Read when ray is imported: a cluster of its own needs a token, and listens on loopback only where the
    proxy does.
    """
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    # Despite its name, lets each part use 127.0.0.1.
    return token | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} if is_loopback(host) else token
