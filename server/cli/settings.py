"""Settings from the command line, the environment and a file, and a command line that answers mistakes in three lines:
what is wrong, what may have been meant, and where help is. It knows no particular setting.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import orjson

from models.errors import UserError
from models.options import Option, add_options, options_of, suggest

PREFIX = "LENGTHWISE_"


class ConfigError(UserError):
    """A setting cannot be used; the message names it as the user wrote it, and the remedy."""

    exit_code = 78
    """EX_CONFIG: a service manager should not try again."""


def add_settings(parser: argparse.ArgumentParser, groups: Iterable[type], names: Container[str] | None = None) -> None:
    """Add a flag for each setting below the title of its group, and --config for the file that may hold them.

    With `names`, only for the settings of these names.
    """
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
    for group in groups:
        known = [setting for setting in options_of(group) if names is None or setting.name in names]
        if known:
            title = (group.__doc__ or "").rstrip(".")
            add_options(parser.add_argument_group(title), known, given_only=True)


def config_file(args: argparse.Namespace, environ: Mapping[str, str]) -> Path | None:
    """The file with settings that the command line names, else the environment, else none."""
    if args.config is not None:
        return Path(args.config)
    return Path(environ[f"{PREFIX}CONFIG"]) if environ.get(f"{PREFIX}CONFIG") else None


def given(known: Iterable[Option], args: argparse.Namespace) -> dict[str, object]:
    """Settings that the command line names; several values of one flag come as a list."""
    values = {setting.name: getattr(args, setting.name) for setting in known if setting.name in args}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def gather(
    known: Sequence[Option], given: Mapping[str, object], environ: Mapping[str, str], file: Path | None
) -> dict[str, Any]:
    """Values by name: the command line's, else the environment's, else the file's. Raises one ConfigError with all
    mistakes, a line each."""
    values: dict[str, object] = {}
    mistakes: list[str] = []
    for found in chain(_from_file(known, file, mistakes), _from_environ(known, environ)):
        try:
            values[found.name] = found.convert(found.value)
        except ValueError as error:
            mistakes.append(f"{found.source}: {error}")
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return {**values, **given}


class Found(NamedTuple):
    """The value of a setting as its source has it."""

    name: str
    source: str
    convert: Callable[[Any], object]
    value: Any


def write_environ(known: Iterable[Option], values: Mapping[str, object]) -> dict[str, str]:
    """Variables from which a further process of the program reads these values."""
    return {_variable(setting.name): _write(values[setting.name]) for setting in known if setting.name in values}


def _write(value: object) -> str:
    match value:
        case tuple():
            return ",".join(map(str, value))
        case bool() | dict():
            return orjson.dumps(value).decode()
    return str(value)


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _from_environ(known: Sequence[Option], environ: Mapping[str, str]) -> Iterator[Found]:
    """An empty variable counts as unset, since many tools cannot leave one out."""
    for setting in known:
        if text := environ.get(variable := _variable(setting.name)):
            yield Found(setting.name, variable, setting.from_commas if setting.many else setting.from_text, text)


def find_strangers(known: Sequence[Option], environ: Mapping[str, str], others: Iterable[str] = ()) -> list[str]:
    """A warning for each variable that looks like a setting and is none; `others` are read elsewhere.

    They are no error, since programs that start this one may set some: Kubernetes does for a service of this name.
    """
    names = [*(setting.name.upper() for setting in known), *others]
    found = sorted(name.removeprefix(PREFIX) for name in environ if name.startswith(PREFIX))
    return [f"{PREFIX}{name} is no setting{_suggest(name, names, PREFIX)}" for name in found if name not in names]


def _from_file(known: Sequence[Option], file: Path | None, mistakes: list[str]) -> Iterator[Found]:
    by_name = {setting.name: setting for setting in known}
    for key, value in ({} if file is None else _read(file)).items():
        setting = by_name.get(key.replace("-", "_"))
        if setting is None:
            mistakes.append(f"{file}: unknown key {key!r}{_suggest(key, by_name)}")
        else:
            yield Found(setting.name, f"{file}: {key}", setting.from_toml, value)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}; check --config") from None
    except ValueError as error:
        raise ConfigError(f"{file}: is not valid TOML: {error}") from None


def _suggest(key: str, names: Iterable[str], prefix: str = "") -> str:
    return suggest(key.replace("-", "_"), names, prefix) or "; `lengthwise serve --help` lists them all"


class CommandLine(argparse.ArgumentParser):
    """Subcommands are read by the same class, and each tells of its own flags. All wrong values are told at once."""

    _mistakes: tuple[str, ...] = ()  # values that cannot be used, found so far

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        errors = "".join(f"{self.prog}: error: {one}\n" for one in (*self._mistakes, message))
        self.exit(2, f"{errors}usage: {self.prog} [FLAG ...]; `{self.prog} --help` explains it\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse here what this command does not know; the program above it knows none of its flags."""
        known, strange = super().parse_known_args(args, namespace)
        if strange:
            self.error(self._about(strange, sys.argv[1:] if args is None else args))
        if self._mistakes:
            self._mistakes, last = self._mistakes[:-1], self._mistakes[-1]
            self.error(last)
        return known, strange

    def _about(self, strange: Sequence[str], args: Sequence[str]) -> str:
        first = strange[0]
        if first.startswith("-"):
            flag = first.partition("=")[0]
            return f"unrecognized arguments: {' '.join(strange)}{suggest(flag, self._option_string_actions)}"
        flags = [word for word in args[: [*args].index(first)] if word in self._option_string_actions]
        repeated = f"; a flag for several values takes one at a time: {flags[-1]} A {flags[-1]} B" if flags else ""
        return f"unrecognized arguments: {' '.join(strange)}{repeated}"

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            self._mistakes = (*self._mistakes, str(error))
            return None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self.error(f"{value!r} is no command{suggest(str(value), action.choices)}")
        super()._check_value(action, value)
