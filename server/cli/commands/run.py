"""`lengthwise run`: a server of its own and a conversation with it, which ends the server.

It owns the arguments and the order of the two; own_server.py starts the server, chat.py talks.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from collections.abc import Mapping
from math import inf
from pathlib import Path

from loadgen.compare.server import ServerFailure, run_server
from loadgen.result_file import PROGRAM
from models.errors import UserError
from models.flags import Subparsers, add_options, read_options
from models.options import options_of
from server.cli.chat import command as chat
from server.cli.config import GROUPS, ServeConfig, load_config
from server.cli.settings import add_settings, config_file, given, write_environ
from server.composition.fetching import fetch_model
from server.process.signals import exit_on

STOP_TIMEOUT = 40.0
"""Seconds that the server may take to end, of which a last answer may take 30."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "run",
        help="start a server and talk to it, in one",
        description="Serve a model on a free port and talk to it in this terminal; the server ends with the "
        "conversation. Flags, variables and --config file as for `lengthwise serve`.",
    )
    add_options(parser.add_argument_group("The conversation"), options_of(chat.Talk))
    add_settings(parser, GROUPS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
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
