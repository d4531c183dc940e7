"""Options of commands, declared once as fields of frozen dataclasses: name, type, bounds, choices, default and help.

A field's type says what its value may be: `Annotated[int, Meta(ge=1)]`, `Literal["auto", "cpu"]`. Flags are made of the
fields here; server/cli/settings.py reads the same fields from the environment and from a TOML file.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")

Natural = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]

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
METAVARS: Mapping[object, str] = types.MappingProxyType({str: "TEXT", Path: "FILE", dict: "JSON"})
"""What stands for a value in --help; N stands for a number."""


def option(
    default: T,
    help: str,
    *,
    metavar: str = "",
    flag: str = "",
    choices: Callable[[], Iterable[str]] | None = None,
    parse: Callable[[str], Any] | None = None,
    check: Callable[[Any], None] | None = None,
    nargs: Literal["?", "*", "+"] | None = None,
    const: object = None,
    commas: bool = False,
    infinite: bool = False,
    positional: bool = False,
    secret: bool = False,
) -> T:
    """A dataclass field that users can set.

    `parse` reads one value of a type of our own, `check` refuses a value of the right type that cannot be used all the
    same; both raise ValueError. `commas`: one flag holds several values, parted by commas. `nargs`: several words may
    follow the flag, or with "?" none, which means `const`. A secret value is left out of what is printed.
    """
    metadata = {
        "help": help,
        "metavar": metavar,
        "flag": flag,
        "choices": choices,
        "parse": parse,
        "check": check,
        "nargs": nargs,
        "const": const,
        "commas": commas,
        "infinite": infinite,
        "positional": positional,
    }
    return field(default=default, metadata=metadata, repr=not secret)


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
    metadata: Mapping[str, Any]

    @property
    def help(self) -> str:
        return str(self.metadata["help"])

    @property
    def kind(self) -> object:
        """The type of one value without bounds."""
        bare = typing.get_args(self.hint)[0] if self.bounds else self.hint
        return typing.get_origin(bare) or bare

    @property
    def bounds(self) -> Meta | None:
        found = getattr(self.hint, "__metadata__", ())
        return found[0] if found else None

    @property
    def positional(self) -> bool:
        return bool(self.metadata["positional"])

    @property
    def flag(self) -> str:
        return self.metadata["flag"] or "--" + self.name.replace("_", "-")

    @property
    def has_opposite(self) -> bool:
        """Whether a switch has a flag to turn it off as well; one that is a `no` would need a double one."""
        return not self.name.startswith("no_")

    def from_text(self, text: str) -> object:
        """The value of one flag; raises ValueError."""
        if self.metadata["commas"]:
            return self.from_commas(text)
        if self.metadata["parse"]:
            return self.metadata["parse"](text)
        return self._checked(_json(text) if self.kind is dict else text, text)

    def from_commas(self, text: str) -> tuple[object, ...]:
        """Several values in one text; raises ValueError."""
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts:
            raise ValueError(f"{text!r} names nothing")
        parse = self.metadata["parse"]
        return tuple(parse(part) if parse else self._checked(part, part) for part in parts)

    def from_toml(self, value: object) -> object:
        """The value as a TOML file has it; raises ValueError."""
        if not self.many:
            return self._checked(value, value, strict=True)
        values = value if isinstance(value, list) else [value]
        return tuple(self._checked(one, one, strict=True) for one in values)

    def _checked(self, value: object, given: object, *, strict: bool = False) -> object:
        try:
            found = msgspec.convert(value, self.hint, strict=strict, dec_hook=_path)
        except msgspec.ValidationError:
            raise ValueError(f"{given!r} is not {self.expected}") from None
        if isinstance(found, float) and not (math.isfinite(found) or (found == math.inf and self.metadata["infinite"])):
            raise ValueError(f"{given!r} is not {self.expected}")
        if self.choices and found not in self.choices:
            raise ValueError(f"{given!r} is none of {', '.join(self.choices)}")
        if self.metadata["check"]:
            self.metadata["check"](found)
        return found

    @property
    def expected(self) -> str:
        """What a value has to be, in words."""
        noun = NOUNS.get(self.kind, "a value")
        if self.kind is float and not self.metadata["infinite"] and (self.bounds is None or self.bounds.le is None):
            noun = "a finite number"
        bounds = describe_bounds(self.bounds)
        return f"{noun} {'of ' if bounds.startswith('at ') else ''}{bounds}".strip()

    @property
    def full_help(self) -> str:
        """What --help says: the help, whether the flag may be repeated, and the default."""
        repeated = "; may be repeated" if self.many and not self.metadata["commas"] else ""
        if self.default in (None, "", ()) or (self.default is False or "(default" in self.help):
            return self.help + repeated
        default = self.default
        if isinstance(default, tuple):
            default = ("," if self.metadata["commas"] else " ").join(map(_written, default))
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
    return tuple(_option(one, hints[one.name]) for one in dataclasses.fields(group) if "help" in one.metadata)


def _option(one: dataclasses.Field[Any], hint: Any) -> Option:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
    many = typing.get_origin(hint) is tuple and (one.metadata["commas"] or typing.get_args(hint)[-1] is ...)
    if many:
        hint = typing.get_args(hint)[0]
    choices: tuple[str, ...] = ()
    if typing.get_origin(hint) is Literal:
        choices, hint = typing.get_args(hint), str
    elif one.metadata["choices"] is not None:
        choices = tuple(one.metadata["choices"]())
    return Option(one.name, hint, many, one.default, choices, one.metadata)


def add_options(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, found: Iterable[Option], *, given_only: bool = False
) -> None:
    """Add a flag for each option; `given_only` ones leave no trace unless they are given, so that others may decide."""
    for one in found:
        default = argparse.SUPPRESS if given_only else one.default
        help_text = one.full_help.replace("%", "%%")
        if one.kind is bool:
            switch = argparse.BooleanOptionalAction if one.has_opposite else "store_true"
            parser.add_argument(one.flag, dest=one.name, action=switch, default=default, help=help_text)
            continue
        several = one.many and not one.metadata["commas"]
        keywords: dict[str, Any] = {} if one.positional else {"dest": one.name}
        if one.metadata["nargs"] is not None:
            keywords |= {"nargs": one.metadata["nargs"], "const": one.metadata["const"]}
        elif one.positional:
            keywords["nargs"] = "?"
        parser.add_argument(
            one.name if one.positional else one.flag,
            # A flag that may be repeated takes one word, unless it says otherwise: the word behind it may be the model.
            action=("extend" if "nargs" in keywords else "append") if several else "store",
            type=_converter(one),
            default=list(default) if several and isinstance(default, tuple) else default,
            metavar=_metavar(one),
            help=help_text,
            **keywords,
        )


def _converter(one: Option) -> Callable[[str], object]:
    def convert(text: str) -> object:
        try:
            return one.from_text(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _metavar(one: Option) -> str:
    if one.metadata["metavar"]:
        return str(one.metadata["metavar"])
    if one.choices:
        return "{" + ",".join(one.choices) + "}"
    return one.name.upper() if one.positional else METAVARS.get(one.kind, "N")


def add_groups(parser: argparse.ArgumentParser, groups: Mapping[str, type]) -> None:
    """Add the flags of several dataclasses, each below its title."""
    for title, group in groups.items():
        add_options(parser.add_argument_group(title), options_of(group))


def read_options(args: argparse.Namespace, group: type[T]) -> T:
    """What the command line says of a group."""
    values = {one.name: getattr(args, one.name) for one in options_of(group) if one.name in args}
    return group(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


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
