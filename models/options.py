"""Options as fields of frozen dataclasses with types, bounds and defaults; the docstring below a field is its help."""

import argparse
import ast
import dataclasses
import difflib
import inspect
import itertools
import json
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")

Natural = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]

WHOLE = re.compile(r"[+-]?\d+")

NOUNS: Mapping[object, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a path",
    dict: "a JSON object",
}


# in --help; N: a number
METAVARS: Mapping[object, str] = {str: "TEXT", Path: "FILE", dict: "JSON"}


@dataclass(frozen=True, slots=True)
class Option:
    """As given to `option`, completed by `bind`."""

    help: str
    default: Any
    metavar: str = ""  # in --help
    flag: str = ""  # instead of the name
    short: tuple[str, ...] = ()  # as ("-n",)
    choices: Callable[[], Iterable[str]] = tuple  # only shown where `check` is given
    parse: Callable[[str], Any] | None = None  # raises ValueError
    check: Callable[[Any], None] | None = None  # raises ValueError
    nargs: Literal["?", "*", "+"] | None = None  # "?": `const` without a word
    const: object = None
    commas: bool = False
    infinite: bool = False
    positional: bool = False
    name: str = ""
    hint: Any = str  # bounded type
    kind: Any = str  # bare type
    bounds: Meta = Meta()
    many: bool = False
    listed: tuple[str, ...] = ()

    def bind(self, name: str, hint: Any, text: str) -> Self:
        if typing.get_origin(hint) in (types.UnionType, typing.Union):
            (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
        many = typing.get_origin(hint) is tuple and (self.commas or typing.get_args(hint)[-1] is ...)
        if many:
            hint = typing.get_args(hint)[0]
        listed = tuple(self.choices())
        if typing.get_origin(hint) is Literal:
            listed, hint = typing.get_args(hint), str
        kind, bounds = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint, Meta())
        kind = typing.get_origin(kind) or kind
        shown = "{" + ",".join(listed) + "}" if listed else METAVARS.get(kind, "N")
        metavar = self.metavar or (name.upper() if self.positional else shown)
        flag = self.flag or (name if self.positional else "--" + name.replace("_", "-"))
        bound = {"hint": hint, "kind": kind, "bounds": bounds, "many": many, "listed": listed}
        return dataclasses.replace(self, help=self.help or text, name=name, flag=flag, metavar=metavar, **bound)

    def from_text(self, text: str, *, separated: bool = False) -> object:
        """Or `separated` in a variable; raises ValueError."""
        if not (self.commas or separated):
            return self._read(text)
        if not (parts := [part.strip() for part in text.split(",") if part.strip()]):
            raise ValueError(f"{text!r} names nothing")
        return tuple(map(self._read, parts))

    def from_flag(self, text: str) -> object:
        """Raises ArgumentTypeError."""
        try:
            return self.from_text(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    def from_toml(self, value: object) -> object:
        """Raises ValueError."""
        if not self.many:
            return self._check(value, value, strict=True)
        return tuple(self._check(item, item, strict=True) for item in (value if isinstance(value, list) else [value]))

    def _read(self, text: str) -> object:
        if self.parse is not None:
            return self.parse(text)
        value: object = text
        if self.kind is dict:
            with suppress(ValueError):  # refused
                value = json.loads(text)
        return self._check(value, text)

    def _check(self, value: object, given: object, *, strict: bool = False) -> object:
        refusal = ValueError(f"{given!r} is not {self.expected}")
        if self.kind is int and isinstance(value, str) and not WHOLE.fullmatch(value):
            raise refusal  # msgspec would take 1e3 and 1.0
        if self.kind is Path and value == "":
            raise refusal  # Path() is the working directory
        try:
            found = msgspec.convert(value, self.hint, strict=strict, dec_hook=lambda kind, value: kind(value))
        except msgspec.ValidationError:
            raise refusal from None
        if isinstance(found, float) and (math.isnan(found) or (math.isinf(found) and not self.infinite)):
            raise refusal
        if self.check is not None:
            self.check(found)
        elif self.listed and found not in self.listed:
            raise ValueError(f"{given!r} is none of {', '.join(self.listed)}")
        return found

    @property
    def expected(self) -> str:
        noun, least, most = NOUNS.get(self.kind, "a value"), self.bounds.ge, self.bounds.le
        if self.kind is float and not self.infinite and most is None:
            noun = "a finite number"
        if least is not None and most is not None:
            return f"{noun} between {_write(least)} and {_write(most)}"
        named = {"at least": least, "above": self.bounds.gt, "at most": most, "below": self.bounds.lt}
        bounds = " and ".join(f"{name} {_write(bound)}" for name, bound in named.items() if bound is not None)
        return f"{noun} {'of ' * bounds.startswith('at ')}{bounds}".strip()

    @property
    def full_help(self) -> str:
        help, default = self.help + "; may be repeated" * (self.many and not self.commas), self.default
        if default in (None, "", ()) or (default is False or "(default" in help):
            return help
        shown = ("," if self.commas else " ").join(map(_write, default if isinstance(default, tuple) else (default,)))
        return f"{help} (default: {shown})"


def option(default: T, help: str = "", *, secret: bool = False, **traits: Any) -> T:
    """Secrets are not printed; help is the docstring below, unless computed."""
    return field(default=default, metadata={"option": Option(help, default, **traits)}, repr=not secret)


def _write(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def options_of(group: type) -> tuple[Option, ...]:
    return _read_options(group)


@cache
def _read_options(group: type) -> tuple[Option, ...]:
    bases = [one for one in reversed(group.__mro__) if dataclasses.is_dataclass(one)]
    texts = {name: text for one in bases for name, text in _read_texts(one.__module__).get(one.__name__, {}).items()}
    hints = typing.get_type_hints(group, include_extras=True)
    declared = (one for one in dataclasses.fields(group) if "option" in one.metadata)
    return tuple(one.metadata["option"].bind(one.name, hints[one.name], texts.get(one.name, "")) for one in declared)


@cache
def _read_texts(module: str) -> Mapping[str, Mapping[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {one.name: dict(_pair_docstrings(one)) for one in tree.body if isinstance(one, ast.ClassDef)}


def _pair_docstrings(body: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for declared, text in itertools.pairwise(body.body):
        match declared, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(value=str(words))):
                yield name, " ".join(words.split())


def suggest(word: str, names: Iterable[str], prefix: str = "", cutoff: float = 0.6) -> str:
    """ " (did you mean X?)", or empty."""
    names = [*names]
    near = [name for name in names if name.startswith(f"{word}-")]  # modes of one
    near = near or difflib.get_close_matches(word, names, n=1, cutoff=cutoff)
    return f"; did you mean {', '.join(prefix + name for name in near)}?" if near else ""


def split_pair(text: str) -> tuple[str, str]:
    """KEY=VALUE; raises ValueError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return key, value


Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_options(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, found: Iterable[Option], *, given_only: bool = False
) -> None:
    """`given_only` flags leave no trace unless given."""
    for option in found:
        several, default = option.many and not option.commas, option.default
        default = list(default) if several and isinstance(default, tuple) else default  # actions add to it
        keywords: dict[str, Any] = {"default": argparse.SUPPRESS if given_only else default}
        if not option.positional:
            keywords["dest"] = option.name
        help = option.full_help.replace("%", "%%")
        if option.kind is bool:
            # without a double `no`
            switch = "store_true" if option.name.startswith("no_") else argparse.BooleanOptionalAction
            parser.add_argument(option.flag, action=switch, help=help, **keywords)
            continue
        nargs = option.nargs or ("?" if option.positional else None)
        if nargs is not None:
            keywords |= {"nargs": nargs, "const": option.const}
        if several:
            # one word: the next may be the model
            keywords["action"] = "extend" if nargs else "append"
        flags = [*option.short, option.flag]
        parser.add_argument(*flags, type=option.from_flag, metavar=option.metavar, help=help, **keywords)


def add_groups(parser: argparse.ArgumentParser, groups: Mapping[str, type]) -> None:
    for title, group in groups.items():
        add_options(parser.add_argument_group(title), options_of(group))


def groups_of(flags: type) -> dict[str, type]:
    return {str(part.__doc__).rstrip("."): part for part in flags.__bases__}


def given(args: argparse.Namespace, group: type) -> dict[str, Any]:
    values = {option.name: getattr(args, option.name) for option in options_of(group) if option.name in args}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def values_of(flags: object, *groups: type) -> dict[str, Any]:
    return {option.name: getattr(flags, option.name) for group in groups for option in options_of(group)}


def read_options(args: argparse.Namespace, group: type[T]) -> T:
    return group(**given(args, group))


def describe(work: Callable[..., object]) -> dict[str, Any]:
    """First sentence, and example, of a docstring."""
    text, mark, example = " ".join((work.__doc__ or "").split()).partition("Example: ")
    first = text.partition(". ")[0].strip(" .")
    return {"help": first[:1].lower() + first[1:], "description": text, "epilog": mark + example}


def add_command(
    subparsers: Subparsers, name: str, group: type[T], work: Callable[[T], int | None]
) -> argparse.ArgumentParser:
    """`work` returns the exit code or None; its docstring is the help."""
    parser: argparse.ArgumentParser = subparsers.add_parser(name, **describe(work))
    add_options(parser, options_of(group))
    parser.set_defaults(run=lambda args: work(read_options(args, group)) or 0)
    return parser
