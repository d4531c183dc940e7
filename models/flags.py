"""Options as flags of a command line: adds them to a parser, and reads back what was given. Knows no particular one."""

from __future__ import annotations

import argparse
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from models.options import Option, options_of

T = TypeVar("T")

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The place to which a program's commands are added."""

METAVARS: Mapping[object, str] = types.MappingProxyType({str: "TEXT", Path: "FILE", dict: "JSON"})
"""Stand-ins for a value in --help; N stands for a number."""


def add_options(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, found: Iterable[Option], *, given_only: bool = False
) -> None:
    """Add a flag for each option; `given_only` ones leave no trace unless they are given, so that others may decide."""
    for option in found:
        default = argparse.SUPPRESS if given_only else option.default
        help_text = option.full_help.replace("%", "%%")
        if option.kind is bool:
            switch = argparse.BooleanOptionalAction if option.has_opposite else "store_true"
            parser.add_argument(option.flag, dest=option.name, action=switch, default=default, help=help_text)
            continue
        several = option.many and not option.commas
        keywords: dict[str, Any] = {} if option.positional else {"dest": option.name}
        if "nargs" in option.traits:
            keywords |= {"nargs": option.traits["nargs"], "const": option.traits.get("const")}
        elif option.positional:
            keywords["nargs"] = "?"
        parser.add_argument(
            *([option.name] if option.positional else [*option.traits.get("short", ()), option.flag]),
            # A flag that may be repeated takes one word, unless it says otherwise: the word behind it may be the model.
            action=("extend" if "nargs" in keywords else "append") if several else "store",
            type=_converter(option),
            default=list(default) if several and isinstance(default, tuple) else default,
            metavar=_metavar(option),
            help=help_text,
            **keywords,
        )


def _converter(option: Option) -> Callable[[str], object]:
    def convert(text: str) -> object:
        try:
            return option.from_text(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _metavar(option: Option) -> str:
    if "metavar" in option.traits:
        return option.traits["metavar"]
    if option.choices:
        return "{" + ",".join(option.choices) + "}"
    return option.name.upper() if option.positional else METAVARS.get(option.kind, "N")


def add_groups(parser: argparse.ArgumentParser, groups: Mapping[str, type]) -> None:
    """Add the flags of several dataclasses, each below its title."""
    for title, group in groups.items():
        add_options(parser.add_argument_group(title), options_of(group))


def read_options(args: argparse.Namespace, group: type[T]) -> T:
    """The options of a group as the command line gives them."""
    values = {option.name: getattr(args, option.name) for option in options_of(group) if option.name in args}
    return group(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def add_command(
    subparsers: Subparsers, name: str, group: type[T], work: Callable[[T], int | None], **texts: Any
) -> argparse.ArgumentParser:
    """Add a command with the options of a dataclass; `work` takes them, and returns the exit code or None for 0.

    texts   `help` and `description`
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(name, **texts)
    add_options(parser, options_of(group))
    parser.set_defaults(run=lambda args: work(read_options(args, group)) or 0)
    return parser
