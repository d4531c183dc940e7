"""Options of commands, declared once as fields of frozen dataclasses: name, type, bounds, choices, default and help.

A field's type says what its value may be: `Annotated[int, Meta(ge=1)]`, `Literal["auto", "cpu"]`. They become
flags of a command line here; server/cli/settings.py reads the same fields from the environment and from a TOML file.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack

import msgspec
from msgspec import Meta

T = TypeVar("T")

Natural = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]

WHOLE = re.compile(r"[+-]?\d+")

NOUNS: Mapping[object, str] = types.MappingProxyType(
    {
        str: "text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        Path: "a path",
        dict: "a JSON object",
    }
)


class Traits(TypedDict, total=False):
    """Properties of an option besides its type, default and help."""

    metavar: str
    """The stand-in for a value in --help."""
    flag: str
    """Another name than the field's."""
    short: tuple[str, ...]
    """Further names of the flag, as ("-n",)."""
    choices: Callable[[], Iterable[str]]
    """The values to choose from; with `check`, which then decides alone, those that --help names."""
    parse: Callable[[str], Any]
    """Reads one value of a type of our own; raises ValueError."""
    check: Callable[[Any], None]
    """Refuses by ValueError a value of the right type that cannot be used all the same."""
    nargs: Literal["?", "*", "+"]
    """Several words may follow the flag, or with "?" none, which means `const`."""
    const: object
    commas: bool
    """Whether one flag holds several values, parted by commas."""
    infinite: bool
    """Whether a number may be inf."""
    positional: bool


def option(default: T, help: str, *, secret: bool = False, **traits: Unpack[Traits]) -> T:
    """A dataclass field that users can set; a secret one is left out of what is printed."""
    return field(default=default, metadata={"help": help, "traits": traits}, repr=not secret)


@dataclass(frozen=True, slots=True)
class Option:
    """One field as users meet it."""

    name: str
    hint: object
    """The type of one value, bounds included."""
    many: bool
    """Whether it holds several values."""
    default: object
    choices: tuple[str, ...]
    help: str
    traits: Traits

    @property
    def kind(self) -> object:
        """The type of one value without bounds."""
        bare = typing.get_args(self.hint)[0] if self.bounds else self.hint
        return typing.get_origin(bare) or bare

    @property
    def bounds(self) -> Meta | None:
        return next(iter(getattr(self.hint, "__metadata__", ())), None)

    @property
    def commas(self) -> bool:
        return self.traits.get("commas", False)

    @property
    def flag(self) -> str:
        return self.traits.get("flag", "--" + self.name.replace("_", "-"))

    def from_text(self, text: str) -> object:
        """The value of one flag; raises ValueError."""
        if self.commas:
            return self.from_commas(text)
        if parse := self.traits.get("parse"):
            return parse(text)
        return self._checked(_json(text) if self.kind is dict else text, text)

    def from_commas(self, text: str) -> tuple[object, ...]:
        """Several values in one text; raises ValueError."""
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts:
            raise ValueError(f"{text!r} names nothing")
        parse = self.traits.get("parse")
        return tuple(parse(part) if parse else self._checked(part, part) for part in parts)

    def from_toml(self, value: object) -> object:
        """The value as a TOML file has it; raises ValueError."""
        if not self.many:
            return self._checked(value, value, strict=True)
        values = value if isinstance(value, list) else [value]
        return tuple(self._checked(item, item, strict=True) for item in values)

    def _checked(self, value: object, given: object, *, strict: bool = False) -> object:
        refusal = ValueError(f"{given!r} is not {self.expected}")
        if self.kind is int and isinstance(value, str) and not WHOLE.fullmatch(value):
            raise refusal  # msgspec would take 1e3 and 1.0
        try:
            found = msgspec.convert(value, self.hint, strict=strict, dec_hook=_path)
        except msgspec.ValidationError:
            raise refusal from None
        if isinstance(found, float) and (math.isnan(found) or (math.isinf(found) and not self.traits.get("infinite"))):
            raise refusal
        if check := self.traits.get("check"):
            check(found)
        elif self.choices and found not in self.choices:
            raise ValueError(f"{given!r} is none of {', '.join(self.choices)}")
        return found

    @property
    def expected(self) -> str:
        """The description of a valid value."""
        noun = NOUNS.get(self.kind, "a value")
        if self.kind is float and not self.traits.get("infinite") and (self.bounds is None or self.bounds.le is None):
            noun = "a finite number"
        bounds = describe_bounds(self.bounds)
        return f"{noun} {'of ' if bounds.startswith('at ') else ''}{bounds}".strip()

    @property
    def full_help(self) -> str:
        """The text in --help: the help, whether the flag may be repeated, and the default."""
        repeated = "; may be repeated" if self.many and not self.commas else ""
        if self.default in (None, "", ()) or (self.default is False or "(default" in self.help):
            return self.help + repeated
        default = self.default
        if isinstance(default, tuple):
            default = ("," if self.commas else " ").join(map(_written, default))
        return f"{self.help}{repeated} (default: {_written(default)})"


def describe_bounds(bounds: Meta | None) -> str:
    """Bounds in words; empty where there are none."""
    if bounds is None:
        return ""
    if bounds.ge is not None and bounds.le is not None:
        return f"between {_written(bounds.ge)} and {_written(bounds.le)}"
    named = (("at least", bounds.ge), ("above", bounds.gt), ("at most", bounds.le), ("below", bounds.lt))
    return " and ".join(f"{name} {_written(bound)}" for name, bound in named if bound is not None)


def _written(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text  # which is refused as what it is: no object


def _path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"{value!r} is not {NOUNS.get(kind, kind)}")


def options_of(group: type) -> tuple[Option, ...]:
    """The options of a dataclass, in order, inherited ones first."""
    hints = typing.get_type_hints(group, include_extras=True)
    return tuple(
        read_field(declared, hints[declared.name])
        for declared in dataclasses.fields(group)
        if "help" in declared.metadata
    )


def read_field(declared: dataclasses.Field[Any], hint: Any) -> Option:
    """The option that a field of such a type declares."""
    traits: Traits = declared.metadata["traits"]
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
    many = typing.get_origin(hint) is tuple and (traits.get("commas") or typing.get_args(hint)[-1] is ...)
    if many:
        hint = typing.get_args(hint)[0]
    choices: tuple[str, ...] = ()
    if typing.get_origin(hint) is Literal:
        choices, hint = typing.get_args(hint), str
    elif listed := traits.get("choices"):
        choices = tuple(listed())
    return Option(declared.name, hint, many, declared.default, choices, declared.metadata["help"], traits)


def suggest(word: str, names: Iterable[str], prefix: str = "") -> str:
    """The nearest of the names as a question to add to an error; empty where none is near."""
    near = difflib.get_close_matches(word, list(names), n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def split_pair(text: str) -> tuple[str, str]:
    """KEY=VALUE as a pair; raises ValueError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return key, value


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
            # A switch has a flag to turn it off as well; one that is a `no` would need a double one.
            switch = "store_true" if option.name.startswith("no_") else argparse.BooleanOptionalAction
            parser.add_argument(option.flag, dest=option.name, action=switch, default=default, help=help_text)
            continue
        several = option.many and not option.commas
        keywords: dict[str, Any] = {} if option.traits.get("positional") else {"dest": option.name}
        if "nargs" in option.traits:
            keywords |= {"nargs": option.traits["nargs"], "const": option.traits.get("const")}
        elif option.traits.get("positional"):
            keywords["nargs"] = "?"
        parser.add_argument(
            *([option.name] if option.traits.get("positional") else [*option.traits.get("short", ()), option.flag]),
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
    return option.name.upper() if option.traits.get("positional") else METAVARS.get(option.kind, "N")


def add_groups(parser: argparse.ArgumentParser, groups: Mapping[str, type]) -> None:
    """Add the flags of several dataclasses, each below its title."""
    for title, group in groups.items():
        add_options(parser.add_argument_group(title), options_of(group))


def groups_of(flags: type) -> dict[str, type]:
    """The dataclasses that all flags of a command are made of, by what their docstrings say."""
    return {str(part.__doc__).rstrip("."): part for part in flags.__bases__}


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
