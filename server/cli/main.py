"""The program `lengthwise`: commands, flags, exit codes, shell completion, the OpenAPI document.

Heavy imports happen when a command needs them. An installed wheel lacks `loadgen/experiments` and its commands.
"""

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from types import ModuleType

from loadgen.commands import add_bench, add_compare, add_simulate
from loadgen.simulate.flags import ValidateFlags
from models.errors import UserError
from models.options import describe
from server.cli.commands import chat, doctor, journal, models, profile, serve, strategy, systemd, train, whatif
from server.process.setup import tune_libraries
from server.settings import CommandLine
from server.version import VERSION


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; 2 for wrong usage."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # terminals may lack UTF-8
    parser = build_parser()
    given_words = sys.argv[1:] if argv is None else argv
    if not given_words:
        parser.print_help()
        return 0
    args = parser.parse_args(given_words, argparse.Namespace(words=given_words[1:]))
    if getattr(args, "computes", False):  # torch in this process
        tune_libraries(os.environ)
    return run_command(args)


def run_command(args: argparse.Namespace) -> int:
    """Returns the exit code. User errors are printed only here."""
    try:
        return int(args.run(args))
    except UserError as error:
        print(f"lengthwise: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # the output's reader is gone; drop what is buffered
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def build_parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = CommandLine(
        prog="lengthwise",
        description="An LLM inference server that schedules by length.",
        epilog="`lengthwise COMMAND --help` explains a command, with an example.",
    )
    parser.add_argument("--version", action="version", version=f"lengthwise {VERSION}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    experiments = _experiments()
    for add in (
        serve.add_parsers,
        models.add_parser,
        chat.add_parser,
        doctor.add_parser,
        profile.add_parser,
        train.add_parser,
        journal.add_parser,
        systemd.add_parser,
        partial(add_bench, others=[experiments.add_benchmarks] if experiments else []),
        add_compare,
        partial(add_simulate, validate=validate if experiments else None),
        whatif.add_parser,
        strategy.add_parser,
        *([experiments.add_commands] if experiments else []),
    ):
        add(subparsers)
    subparsers.add_parser("openapi", **describe(_print_openapi)).set_defaults(run=_print_openapi)
    completion = subparsers.add_parser("completion", **describe(_print_completion))
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(run=_print_completion)
    return parser


def _print_completion(args: argparse.Namespace) -> int:
    """Complete commands and flags in a shell.

    Prints the completion of commands, flags and their values for a shell, which has it as long as it runs by
    `source <(lengthwise completion bash)`, and for good by that line in ~/.bashrc or ~/.zshrc. Of fish:
    `lengthwise completion fish > ~/.config/fish/completions/lengthwise.fish`.

    Example: lengthwise completion bash
    """
    import shtab

    parser = build_parser()
    _name_values(parser, {"FILE": shtab.FILE, "FOLDER": shtab.DIRECTORY})
    sys.stdout.write(shtab.complete(parser, args.shell))
    return 0


def _name_values(parser: argparse.ArgumentParser, places: Mapping[str, object]) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _name_values(command, places)
        elif isinstance(action.metavar, str):
            if action.metavar.startswith("{"):
                action.choices = action.metavar.strip("{}").split(",")
            elif action.metavar in places:
                action.complete = places[action.metavar]  # type: ignore[attr-defined]


def _print_openapi(args: argparse.Namespace) -> int:
    """Write the API as an OpenAPI document to standard output.

    Example: lengthwise openapi
    """
    from server.api.openapi import encode_document
    from server.http.operations import OPERATIONS

    sys.stdout.write(encode_document(OPERATIONS).decode())
    return 0


def _experiments() -> ModuleType | None:
    """None in a wheel."""
    if find_spec("loadgen.experiments") is None:
        return None
    from loadgen.experiments import commands

    return commands


def validate(asked: ValidateFlags) -> int:
    """torch"""
    tune_libraries(os.environ)
    from loadgen.experiments.validation.validate import validate  # torch, which other commands do without

    return validate(asked)
