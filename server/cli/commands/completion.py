"""`lengthwise completion SHELL`: what makes a shell complete commands, flags and their values, on standard output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping

from models.flags import Subparsers

SHELLS = ("bash", "zsh", "fish")


def add_parser(subparsers: Subparsers, build_parser: Callable[[], argparse.ArgumentParser]) -> None:
    """Add the command to the program's, whose whole parser `build_parser` makes."""
    parser = subparsers.add_parser(
        "completion",
        help="complete commands and flags in a shell",
        description="Print the completion of commands, flags and their values for a shell, which has it as long as it "
        "runs by `source <(lengthwise completion bash)`, and for good by that line in ~/.bashrc or ~/.zshrc. Of fish: "
        "`lengthwise completion fish > ~/.config/fish/completions/lengthwise.fish`.",
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=lambda args: _print(build_parser(), args.shell))


def _print(parser: argparse.ArgumentParser, shell: str) -> int:
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
