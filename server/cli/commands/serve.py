"""`lengthwise serve`: an OpenAI-compatible server, until a signal ends it."""

from __future__ import annotations

import argparse
import os
import sys

from models.catalog.catalog import Catalog
from models.errors import UserError
from models.flags import Subparsers
from models.options import options_of
from server.cli.config import GROUPS, NO_EMBEDDINGS, ServeConfig, read_config
from server.cli.settings import PREFIX, add_settings, find_strangers
from server.composition.cache_paths import require_writable
from server.http.keys import read_keys
from server.process.openmp import tune_libraries
from server.process.port import taken

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
    for check in (_check_journal, _check_keys, _check_certificate, _check_models, _check_port):
        try:
            check(config)
        except UserError as error:
            found.append(error)
    if len(found) == 1:
        raise found[0]
    if found:
        raise type(found[0])("\n  ".join(["the server cannot start:", *map(str, found)]))


def _check_journal(config: ServeConfig) -> None:
    require_writable(None if config.no_journal else config.journal)


def _check_keys(config: ServeConfig) -> None:
    read_keys(config.api_key, config.api_key_file, os.environ)


def _check_certificate(config: ServeConfig) -> None:
    if config.ssl_certfile is not None or config.ssl_keyfile is not None:
        from server.http.front import tls_context

        tls_context(config.ssl_certfile, config.ssl_keyfile)


def _check_models(config: ServeConfig) -> None:
    Catalog().find(config.model)
    if config.embedding_model is not None and config.embedding_model != NO_EMBEDDINGS:
        Catalog().find(config.embedding_model)


def _check_port(config: ServeConfig) -> None:
    with taken(config.host, config.port, config.uds):
        pass  # it is taken for good when torch is there, seconds later
