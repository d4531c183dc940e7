"""The program `lengthwise`: its commands, their flags and their exit codes.

A command's own work is in its own module; what is heavy is imported only when a command needs it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from server import chat_command, models_command
from server.config import ServeConfig, load_config
from server.settings import PREFIX, ConfigError, Setting, settings
from server.version import VERSION

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

BAD_CONFIG = 78
"""EX_CONFIG: a service manager should not try again."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Wrong usage exits with 2 at once."""
    args = build_parser().parse_args(argv)
    try:
        code: int = args.run(args)
    except ConfigError as error:
        print(f"lengthwise: error: {error}", file=sys.stderr)
        return BAD_CONFIG
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; what is still buffered has nowhere to go either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


def build_parser() -> argparse.ArgumentParser:
    """Every command and flag."""
    parser = argparse.ArgumentParser(prog="lengthwise", description="An LLM inference server that schedules by length.")
    parser.add_argument("--version", action="version", version=f"lengthwise {VERSION}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(subparsers)
    models_command.add_parser(subparsers)
    chat_command.add_parser(subparsers)
    return parser


def _add_serve(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serve a model over HTTP, as OpenAI's API does. Every flag is also a variable "
        f"({PREFIX}MAX_NUM_SEQS) and a key of the --config file (max_num_seqs); the command line wins.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
    for setting in settings(ServeConfig):
        _add_setting(parser, setting)
    parser.set_defaults(run=_serve)


def _add_setting(parser: argparse.ArgumentParser, setting: Setting) -> None:
    """A flag that leaves no trace unless it is given, so that the environment and the file can have their say."""
    parser.add_argument(
        setting.name if setting.positional else setting.flag,
        nargs="?" if setting.positional else "+" if setting.many else None,
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
    return "TEXT" if setting.kind is str else "FILE" if setting.kind is Path else "N"


def _help(setting: Setting) -> str:
    shown = setting.default not in (None, ())
    return f"{setting.help} (default: {setting.default})" if shown else setting.help


def _serve(args: argparse.Namespace) -> int:
    config = load_config(_given(args), os.environ, _config_file(args, os.environ))
    _spin_briefly(os.environ)
    # These import torch, which other commands and --help can do without.
    from server.app import fetch, open_service
    from server.process import serve

    return serve(config, fetch, open_service)


def _spin_briefly(environ: MutableMapping[str, str]) -> None:
    """Let OpenMP's threads give the core away soon when they wait for each other; it reads this when torch loads.

    By default they spin for milliseconds, which is a disaster where anything else wants a core: with one other busy
    process on 2 cores, a decode step of 70 ms took up to 3 s, and 0.2 s like this. Undisturbed, both are as fast.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", "10000")


def _given(args: argparse.Namespace) -> dict[str, object]:
    """What the command line says; several values of one flag come as a list."""
    values = {setting.name: getattr(args, setting.name) for setting in settings(ServeConfig) if setting.name in args}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _config_file(args: argparse.Namespace, environ: Mapping[str, str]) -> Path | None:
    if args.config is not None:
        return Path(args.config)
    return Path(environ[f"{PREFIX}CONFIG"]) if environ.get(f"{PREFIX}CONFIG") else None


if __name__ == "__main__":
    sys.exit(main())
