"""The program `lengthwise`: its commands, their flags and their exit codes.

A command's own work is in its own module; what is heavy is imported only when a command needs it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from loadgen.bench import command as bench_command
from loadgen.compare import command as compare_command
from loadgen.simulate import command as simulate_command
from models.catalog.catalog import default_cache
from models.errors import UserError
from models.flags import Subparsers
from models.options import options_of
from server.cli import chat as chat_command
from server.cli import completion, doctor, experiments
from server.cli import journal as journal_command
from server.cli import models as models_command
from server.cli import openapi as openapi_command
from server.cli import profile as profile_command
from server.cli import ray as ray_command
from server.cli import run as run_own
from server.cli import strategy as strategy_command
from server.cli import systemd as systemd_command
from server.cli import train as train_command
from server.cli import whatif as whatif_command
from server.cli.command_line import CommandLine
from server.cli.config import GROUPS, ServeConfig, load_config
from server.cli.examples import write_example, write_overview
from server.cli.settings import PREFIX, add_settings, config_file, find_strangers, given
from server.composition.cache_paths import require_writable
from server.process.openmp import spin_briefly
from server.process.port import taken
from server.version import VERSION

ELSEWHERE = ("CONFIG", "CACHE")
"""Variables that are read though they are no settings: the file with settings, and the cache folder."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Wrong usage exits with 2 at once."""
    parser = build_parser()
    given_words = sys.argv[1:] if argv is None else argv
    if not given_words:
        parser.print_help()
        return 0
    args = parser.parse_args(given_words)
    if getattr(args, "computes", False):  # with torch in this process, for commands that may not import the server
        spin_briefly(os.environ)
    return run_command(args)


def run_command(args: argparse.Namespace) -> int:
    """Do what a parsed command line says; returns the exit code. Errors for the user are printed here and only here."""
    try:
        return int(args.run(args))
    except UserError as error:
        print(f"lengthwise: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the output has gone; what is still buffered has nowhere to go either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def build_parser() -> argparse.ArgumentParser:
    """Every command and flag."""
    parser: argparse.ArgumentParser = CommandLine(
        prog="lengthwise",
        description="An LLM inference server that schedules by length.",
        epilog=write_overview(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lengthwise {VERSION}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(subparsers)
    models_command.add_parser(subparsers)
    chat_command.add_parser(subparsers)
    run_own.add_parser(subparsers)
    doctor.add_parser(subparsers)
    profile_command.add_parser(subparsers)
    train_command.add_parser(subparsers)
    journal_command.add_parser(subparsers)
    ray_command.add_parser(subparsers)
    systemd_command.add_parser(subparsers)
    openapi_command.add_parser(subparsers)
    bench_command.add_parser(subparsers, (experiments.add_benchmarks,))
    compare_command.add_parser(subparsers)
    simulate_command.add_parser(subparsers, default_cache, experiments.validate)
    whatif_command.add_parser(subparsers)
    strategy_command.add_parser(subparsers)
    experiments.add_commands(subparsers)
    completion.add_parser(subparsers, build_parser)
    for name, command in subparsers.choices.items():
        command.epilog = command.epilog or write_example(name)
    return parser


def _add_serve(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serve a model over HTTP, as OpenAI's API does. Every flag is also a variable "
        f"({PREFIX}MAX_NUM_SEQS) and a key of the --config file (max_num_seqs); the command line wins.",
    )
    add_settings(parser, GROUPS)
    parser.set_defaults(run=_serve)


def _serve(args: argparse.Namespace) -> int:
    known = options_of(ServeConfig)
    config = load_config(given(known, args), os.environ, config_file(args, os.environ))
    for stranger in find_strangers(known, os.environ, ELSEWHERE):
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
