"""`lengthwise serve`: an OpenAI-compatible server, until a signal ends it."""

from __future__ import annotations

import argparse
import os
import sys

from models.flags import Subparsers
from models.options import options_of
from server.cli.config import GROUPS, ServeConfig, read_config
from server.cli.settings import PREFIX, add_settings, find_strangers
from server.composition.cache_paths import require_writable
from server.process.openmp import spin_briefly
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
    require_writable(None if config.no_journal else config.journal)
    with taken(config.host, config.port, config.uds):
        pass  # what is in use is told at once; it is taken for good when torch is there, seconds later
    spin_briefly(os.environ)
    if sys.stderr.isatty():
        print(f"Loading {config.model}, which takes from seconds to a minute ...", file=sys.stderr, flush=True)
    # These import torch, which other commands and --help can do without.
    from server.composition.app import fetch, open_service
    from server.process.life import serve

    return serve(config, fetch, open_service)
