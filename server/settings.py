"""Settings from command line, environment and file."""

import argparse
import os
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from models.errors import UserError
from models.options import Subparsers, add_options, describe, given, options_of, suggest

T = TypeVar("T")

PREFIX = "LENGTHWISE_"

URLS = ("--backend", "--base-url", "--url", "--urls")  # flags for addresses


class ConfigError(UserError):
    """Names the setting as the user wrote it, and the remedy."""

    exit_code = 78  # EX_CONFIG: do not restart


def add_settings(parser: argparse.ArgumentParser, *parts: type, names: Collection[str] = ()) -> None:
    """A flag a setting, of `names` if any, grouped by declaring class, and --config."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
    for group in (one for part in parts for one in reversed(part.__mro__) if is_dataclass(one)):
        declared = [one for one in options_of(group) if one.name in group.__annotations__]
        if own := [one for one in declared if not names or one.name in names]:
            title = (group.__doc__ or "").partition("\n")[0].rstrip(".")
            add_options(parser.add_argument_group(title), own, given_only=True)


def load_settings(kind: type[T], given: Mapping[str, object], environ: Mapping[str, str], file: Path | None) -> T:
    """Command line, environment, file, defaults. Raises one ConfigError for all mistakes."""
    known = {setting.name: setting for setting in options_of(kind)}
    values: dict[str, object] = {}
    mistakes: list[str] = []

    def read(name: str, source: str, convert: Callable[[], object]) -> None:
        try:
            values[name] = convert()
        except ValueError as error:
            mistakes.append(f"{source}: {error}")

    for key, value in ({} if file is None else _read(file)).items():
        if (setting := known.get(key.replace("-", "_"))) is None:
            mistakes.append(f"{file}: unknown key {key!r}{_suggest(key, known)}")
        else:
            read(setting.name, f"{file}: {key}", partial(setting.from_toml, value))
    for name, setting in known.items():
        if text := environ.get(_variable(name)):  # empty counts as unset, since many tools cannot omit it
            read(name, _variable(name), partial(setting.from_text, text, separated=setting.many))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return kind(**{**values, **given})


def read_settings(kind: type[T], args: argparse.Namespace) -> T:
    """With the flags of `add_settings`. Raises ConfigError."""
    file = args.config or os.environ.get(_variable("config"))
    return load_settings(kind, given(args, kind), os.environ, Path(file) if file else None)


def add_configured(
    subparsers: Subparsers,
    name: str,
    kind: type[T],
    work: Callable[[T], int],
    *parts: type,
    names: Collection[str] = (),
) -> argparse.ArgumentParser:
    """A command with settings.

    work    takes them, returns the exit code; its docstring is the help
    parts   classes of settings with flags here; none: all
    names   the only ones, if any
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(name, **describe(work))
    add_settings(parser, *(parts or (kind,)), names=names)
    parser.set_defaults(run=lambda args: work(read_settings(kind, args)))
    return parser


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def find_strangers(kind: type, environ: Mapping[str, str], others: Iterable[str] = ()) -> list[str]:
    """Warnings for unknown variables with our prefix, no errors: Kubernetes sets some. `others` are read elsewhere."""
    names = [*(setting.name.upper() for setting in options_of(kind)), *others]
    found = sorted(name.removeprefix(PREFIX) for name in environ if name.startswith(PREFIX))
    return [f"{PREFIX}{name} is no setting{_suggest(name, names, PREFIX)}" for name in found if name not in names]


def read_text(file: Path, source: str) -> str:
    """Raises ConfigError, without what was read, which may be a key."""
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{source} cannot be read: {reason}") from None


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
    """Subcommands share this class; all wrong values are reported at once."""

    _mistakes: tuple[str, ...] = ()  # wrong values so far
    _given: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        errors = "".join(f"{self.prog}: error: {one}\n" for one in (*self._mistakes, message))
        self.exit(2, f"{errors}usage: {self.prog} [FLAG ...]; `{self.prog} --help` explains it\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Unknown flags are errors here: the parent does not know the command's."""
        self._given = list(sys.argv[1:] if args is None else args)
        known, strange = super().parse_known_args(args, namespace)
        if strange:
            self.error(self._about(strange))
        if self._mistakes:
            self._mistakes, last = self._mistakes[:-1], self._mistakes[-1]
            self.error(last)
        return known, strange

    def _about(self, strange: Sequence[str]) -> str:
        first, told = strange[0], f"unrecognized arguments: {' '.join(strange)}"
        if first.startswith("-"):
            flag = first.partition("=")[0]
            return told + suggest(flag, self._option_string_actions, cutoff=0.8)
        if "://" in first and (urls := [flag for flag in URLS if flag in self._option_string_actions]):
            return f"{told}; did you mean {urls[0]} {first}?"
        several = {flag for flag, one in self._option_string_actions.items() if isinstance(one, argparse._AppendAction)}
        flags = [word for word in self._given[: self._given.index(first)] if word in several]
        repeated = f"; a flag for several values takes one at a time: {flags[-1]} A {flags[-1]} B" if flags else ""
        return told + repeated

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            self._mistakes = (*self._mistakes, str(error))
            return None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            before = self._given[self._given.index(value) - 1] if value in self._given[1:] else ""
            if before.startswith("--") and before not in self._option_string_actions:  # it was meant for that
                self.error(self._about([before]))
            self.error(f"{value!r} is no command{suggest(str(value), action.choices)}")
        super()._check_value(action, value)
