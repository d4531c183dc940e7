"""The commands that start servers until a signal ends them: `lengthwise serve`; `lengthwise run`, with a conversation
in the terminal; `lengthwise ray`, several behind Ray Serve's proxy.

They own the flags and the errors. Torch, aiohttp and ray are imported only when a command needs them.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from math import inf
from pathlib import Path

from loadgen.compare.server import ServerFailure, run_server
from loadgen.result_file import PROGRAM
from models.catalog.catalog import Catalog
from models.errors import UserError
from models.options import Subparsers, add_options, options_of, read_options
from server.cli.commands import chat
from server.cli.config import GROUPS, NO_EMBEDDINGS, ServeConfig, load_config, read_config
from server.cli.settings import PREFIX, add_settings, config_file, find_strangers, given, write_environ
from server.composition.cache_paths import fetch_model, require_writable
from server.deploy.settings import Cluster, read_servers
from server.http.keys import read_keys
from server.process.port import is_loopback, taken
from server.process.setup import exit_on, tune_libraries

ELSEWHERE = ("CONFIG", "CACHE")
"""Variables that are read though they are no settings: the file with settings, and the cache folder."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serve a model over HTTP, as OpenAI's API does. Every flag is also a variable "
        f"({PREFIX}MAX_NUM_SEQS) and a key of the --config file (max_num_seqs); the command line wins.",
    )
    add_settings(parser, GROUPS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes; returns the exit code. Raises UserError."""
    config = read_config(args)
    for stranger in find_strangers(options_of(ServeConfig), os.environ, ELSEWHERE):
        print(f"lengthwise: warning: {stranger}", file=sys.stderr)
    require_startable(config)
    tune_libraries(os.environ)
    if sys.stderr.isatty():
        print(f"Loading {config.model}, which takes from seconds to a minute ...", file=sys.stderr, flush=True)
    # These import torch, which other commands and --help can do without.
    from server.composition.app import fetch, open_service
    from server.process.life import serve

    return serve(config, fetch, open_service)


def require_startable(config: ServeConfig) -> None:
    """Raise all mistakes together that can be found before anything heavy is imported: one does not hide another."""
    found: list[UserError] = []

    @contextmanager
    def collect() -> Iterator[None]:
        try:
            yield
        except UserError as error:
            found.append(error)

    with collect():
        require_writable(None if config.no_journal else config.journal)
    with collect():
        read_keys(config.api_key, config.api_key_file, os.environ)
    with collect():
        if config.ssl_certfile is not None or config.ssl_keyfile is not None:
            from server.http.front import tls_context

            tls_context(config.ssl_certfile, config.ssl_keyfile)
    with collect():
        Catalog().find(config.model)
        if config.embedding_model is not None and config.embedding_model != NO_EMBEDDINGS:
            Catalog().find(config.embedding_model)
    with collect(), taken(config.host, config.port, config.uds):
        pass  # it is taken for good when torch is there, seconds later
    if len(found) == 1:
        raise found[0]
    if found:
        raise type(found[0])("\n  ".join(["the server cannot start:", *map(str, found)]))


STOP_TIMEOUT = 40.0
"""Seconds that the server may take to end, of which a last answer may take 30."""


def add_run(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "run",
        help="start a server and talk to it, in one",
        description="Serve a model on a free port and talk to it in this terminal; the server ends with the "
        "conversation. Flags, variables and --config file as for `lengthwise serve`.",
    )
    add_options(parser.add_argument_group("The conversation"), options_of(chat.Talk))
    add_settings(parser, GROUPS)
    parser.set_defaults(run=run_and_talk)


def run_and_talk(args: argparse.Namespace) -> int:
    """Talk until the user leaves; returns the chat's exit code. Raises UserError where no server starts."""
    settings = options_of(ServeConfig)
    named: Mapping[str, object] = {"port": 0, **given(settings, args)}
    file = config_file(args, os.environ)
    config = load_config(named, os.environ, file)
    fetch_model(config)  # here, where its progress is seen
    environ = write_environ(settings, named) | ({} if file is None else {"LENGTHWISE_CONFIG": str(file.absolute())})
    with (
        exit_on(signal.SIGTERM, signal.SIGHUP),
        tempfile.TemporaryDirectory(prefix="lengthwise-run-") as folder,
    ):
        log = Path(folder) / "server.log"
        print(f"Loading {config.model} ...", flush=True)
        try:
            with run_server([*PROGRAM, "serve"], log, inf, STOP_TIMEOUT, environ) as server:
                print(f"Serving it at {server.url}, with a dashboard there, until you leave.", flush=True)
                return chat.talk(server.url, read_options(args, chat.Talk), key=next(iter(config.api_key), None))
        except ServerFailure as error:
            raise UserError(str(error)) from None


def add_ray(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "ray",
        help="serve from several machines, behind Ray Serve",
        description="Start several servers behind Ray Serve's proxy, which sends each request where it is expected to "
        "be done first; needs lengthwise[ray]. See docs/scale-out.md.",
    )
    add_options(parser, options_of(Cluster))
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="behind --: model and flags of `lengthwise serve`")
    parser.set_defaults(run=run_ray)


def run_ray(args: argparse.Namespace) -> int:
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
