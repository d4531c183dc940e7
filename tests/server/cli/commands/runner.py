"""A command of the program, by itself and in this process."""

import argparse
from collections.abc import Callable
from typing import Any, TypeAlias

from server.cli import main

Told: TypeAlias = Callable[..., str]


def run_command(add_parser: Callable[[Any], None], *arguments: object) -> int:
    """Its exit code; raises SystemExit for wrong flags."""
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return main.run_command(parser.parse_args([*map(str, arguments)]))
