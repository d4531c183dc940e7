"""Settings as flags of a command: adds them to its parser, and reads back what was given.

It knows no particular setting; what they mean, and where else they come from, is settings.py's business.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from server.cli.config import ServeConfig
from server.cli.settings import PREFIX, Setting, Value, settings

METAVARS: Mapping[type[Value], str] = MappingProxyType({str: "TEXT", Path: "FILE", dict: "JSON"})
"""What stands for a value in --help; N stands for a number."""


def add_settings(parser: argparse.ArgumentParser, known: Iterable[Setting]) -> None:
    """A flag for each setting, and --config for the file that may hold them."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
    for setting in known:
        _add_setting(parser, setting)


def given(args: argparse.Namespace) -> dict[str, object]:
    """What the command line says; several values of one flag come as a list."""
    values = {setting.name: getattr(args, setting.name) for setting in settings(ServeConfig) if setting.name in args}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def config_file(args: argparse.Namespace, environ: Mapping[str, str]) -> Path | None:
    """The file with settings that the command line names, else the environment, else none."""
    if args.config is not None:
        return Path(args.config)
    return Path(environ[f"{PREFIX}CONFIG"]) if environ.get(f"{PREFIX}CONFIG") else None


def _add_setting(parser: argparse.ArgumentParser, setting: Setting) -> None:
    """A flag that leaves no trace unless it is given, so that the environment and the file can have their say."""
    if setting.kind is bool:
        action = argparse.BooleanOptionalAction if setting.has_opposite else "store_true"
        parser.add_argument(setting.flag, action=action, default=argparse.SUPPRESS, help=setting.help)
        return
    parser.add_argument(
        setting.name if setting.positional else setting.flag,
        # One value a flag, and the flag repeated for more: it must not take in the model that comes behind it.
        action="append" if setting.many else "store",
        nargs="?" if setting.positional else None,
        type=_converter(setting),
        default=argparse.SUPPRESS,
        metavar=_metavar(setting),
        help=_help(setting).replace("%", "%%"),
    )


def _converter(setting: Setting) -> Callable[[str], object]:
    def convert(text: str) -> object:
        try:
            return setting.from_text(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _metavar(setting: Setting) -> str:
    if setting.choices:
        return "{" + ",".join(setting.choices) + "}"
    if setting.positional:
        return setting.name.upper()
    return METAVARS.get(setting.kind, "N")


def _help(setting: Setting) -> str:
    default = " ".join(setting.default) if isinstance(setting.default, tuple) else setting.default
    repeated = "; may be repeated" if setting.many else ""
    return f"{setting.help}{repeated}" if default in (None, "") else f"{setting.help}{repeated} (default: {default})"
