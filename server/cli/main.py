"""The program `lengthwise`: its commands, their flags and exit codes, and what describes them: examples, the completion
of a shell, the OpenAPI document.

A command's own work is in its own module; what is heavy is imported only when a command needs it. An installed wheel
has no `loadgen/experiments`, and so none of their commands.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from types import MappingProxyType

from loadgen.commands import add_bench, add_compare, add_simulate
from loadgen.simulate.flags import ValidateFlags
from models.catalog.catalog import default_cache
from models.errors import UserError
from models.options import Subparsers
from server.cli.commands import (
    chat,
    doctor,
    gateway,
    journal,
    models,
    profile,
    serve,
    strategy,
    systemd,
    train,
    whatif,
)
from server.cli.settings import CommandLine
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
    for add in (
        serve.add_parser,
        models.add_parser,
        chat.add_parser,
        serve.add_run,
        doctor.add_parser,
        profile.add_parser,
        train.add_parser,
        journal.add_parser,
        gateway.add_parser,
        serve.add_ray,
        systemd.add_parser,
        add_openapi,
    ):
        add(subparsers)
    add_bench(subparsers, (add_benchmarks,))
    add_compare(subparsers)
    add_simulate(subparsers, default_cache, validate if are_here() else None)
    whatif.add_parser(subparsers)
    strategy.add_parser(subparsers)
    add_experiments(subparsers)
    add_completion(subparsers)
    for name, described in subparsers.choices.items():
        described.epilog = described.epilog or write_example(name)
    return parser


SHELLS = ("bash", "zsh", "fish")


def add_completion(subparsers: Subparsers) -> None:
    """Add the command to the program's."""
    parser = subparsers.add_parser(
        "completion",
        help="complete commands and flags in a shell",
        description="Print the completion of commands, flags and their values for a shell, which has it as long as it "
        "runs by `source <(lengthwise completion bash)`, and for good by that line in ~/.bashrc or ~/.zshrc. Of fish: "
        "`lengthwise completion fish > ~/.config/fish/completions/lengthwise.fish`.",
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=lambda args: _print_completion(build_parser(), args.shell))


def _print_completion(parser: argparse.ArgumentParser, shell: str) -> int:
    import shtab

    _name_values(parser, {"FILE": shtab.FILE, "FOLDER": shtab.DIRECTORY})
    sys.stdout.write(shtab.complete(parser, shell))
    return 0


def _name_values(parser: argparse.ArgumentParser, places: Mapping[str, object]) -> None:
    """Tell the library which values a flag has, which its help names and its type checks, and which are files."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _name_values(command, places)
        elif isinstance(action.metavar, str):
            if action.metavar.startswith("{"):
                action.choices = action.metavar.strip("{}").split(",")
            elif action.metavar in places:
                action.complete = places[action.metavar]  # type: ignore[attr-defined]


def add_openapi(subparsers: Subparsers) -> None:
    """Add the command to the program's."""
    what = "write the API as an OpenAPI document"
    parser = subparsers.add_parser("openapi", help=what, description=f"{what[0].upper()}{what[1:]} to standard output.")
    parser.set_defaults(run=_print_openapi)


def _print_openapi(args: argparse.Namespace) -> int:
    """Print the document."""
    from server.api.openapi import encode_document
    from server.api.operations import OPERATIONS

    sys.stdout.write(encode_document(OPERATIONS).decode())
    return 0


EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "Serve and talk": (
            ("run", "serve the default model and talk to it, in one"),
            ("serve --port 8000", "serve the default model"),
            ("chat", "talk to that server"),
            ("doctor", "tell what would keep the server from starting"),
            ("models", "list the models that can be served by name, and their memory"),
            ("models pull smollm2-135m-instruct", "fetch a model; `models rm` deletes it"),
            ("systemd print", "print a systemd unit"),
            ("gateway --backend http://127.0.0.1:8001/v1", "queue calls before a server that runs already"),
            ("ray -- smollm2-135m-instruct", "serve from several machines behind Ray Serve"),
            ("completion bash", "complete commands and flags in bash, zsh or fish"),
            ("openapi", "print the API as an OpenAPI document"),
        ),
        "Learn from this machine and what was served": (
            ("profile --quick", "measure this machine for the scheduler"),
            ("train", "train the length predictor from the journal"),
            ("journal show -n 5", "print the newest five requests"),
            ("whatif", "tell what would have served the journal's requests better"),
        ),
        "Measure and compare": (
            ("bench --num-prompts 50 --request-rate 2", "measure a running server"),
            ("compare --strategies baton-pd,lengthwise", "compare two strategies on this machine"),
            ("simulate --strategies vs,scls --rate 10", "compare two strategies without a machine"),
            ("paper scls", "simulate a paper's experiments, beside what was published"),
            ("arena", "let all strategies serve many loads on many simulated machines"),
            ("strategy new my_order", "begin a strategy of your own"),
        ),
    }
)
"""(command line, what it does), by the group's title."""


def write_overview() -> str:
    """All examples, below the titles of their groups."""
    groups = (
        f"{title}:\n" + "".join(f"  lengthwise {line:<44} {what}\n" for line, what in examples)
        for title, examples in EXAMPLES.items()
    )
    return "\n".join(groups) + "\n`lengthwise COMMAND --help` explains a command.\n"


def write_example(command: str) -> str | None:
    """The example of one command; None where it has none."""
    lines = [line for examples in EXAMPLES.values() for line, _ in examples]
    return next((f"Example: lengthwise {line}" for line in lines if line.split()[0] == command), None)


def are_here() -> bool:
    """Whether the package with the experiments can be imported."""
    return find_spec("loadgen.experiments") is not None


def add_benchmarks(subparsers: Subparsers) -> None:
    """Add the commands below `bench` that load a model into this process."""
    if are_here():
        from loadgen.experiments import commands

        commands.add_benchmarks(subparsers)


def add_experiments(subparsers: Subparsers) -> None:
    """Add `paper` and `arena`."""
    if are_here():
        from loadgen.experiments import commands

        commands.add_commands(subparsers)


def validate(asked: ValidateFlags) -> int:
    """Run `simulate --validate`; returns the exit code."""
    tune_libraries(os.environ)
    from loadgen.experiments.validation.validate import validate  # torch, which other commands can do without

    return validate(asked)
