"""The program `lengthwise`: its commands, their flags and their exit codes.

A command's own work is in its own module; what is heavy is imported only when a command needs it.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from loadgen.commands import add_bench, add_compare, add_simulate
from models.catalog.catalog import default_cache
from models.errors import UserError
from server.cli.chat import command as chat
from server.cli.command_line import CommandLine
from server.cli.commands import (
    completion,
    doctor,
    experiments,
    gateway,
    journal,
    models,
    openapi,
    profile,
    ray,
    run,
    serve,
    strategy,
    systemd,
    train,
    whatif,
)
from server.cli.examples import write_example, write_overview
from server.process.openmp import tune_libraries
from server.version import VERSION


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Wrong usage exits with 2 at once."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may have another encoding than UTF-8
    parser = build_parser()
    given_words = sys.argv[1:] if argv is None else argv
    if not given_words:
        parser.print_help()
        return 0
    args = parser.parse_args(given_words)
    if getattr(args, "computes", False):  # with torch in this process, for commands that may not import the server
        tune_libraries(os.environ)
    return run_command(args)


def run_command(args: argparse.Namespace) -> int:
    """Do what a parsed command line says; returns the exit code. Errors for the user are printed here and only here."""
    try:
        return int(args.run(args))
    except UserError as error:
        print(f"lengthwise: error: {error}", file=sys.stderr)
        return error.exit_code
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
    for command in (serve, models, chat, run, doctor, profile, train, journal, gateway, ray, systemd, openapi):
        command.add_parser(subparsers)
    add_bench(subparsers, (experiments.add_benchmarks,))
    add_compare(subparsers)
    add_simulate(subparsers, default_cache, experiments.validate)
    whatif.add_parser(subparsers)
    strategy.add_parser(subparsers)
    experiments.add_commands(subparsers)
    completion.add_parser(subparsers, build_parser)
    for name, described in subparsers.choices.items():
        described.epilog = described.epilog or write_example(name)
    return parser
