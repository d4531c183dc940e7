"""A command of the program, by itself and in this process."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


def run_command(add_parser: Callable[[Any], None], *arguments: object) -> int:
    """Its exit code; raises SystemExit for wrong flags."""
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args([*map(str, arguments)])
    code = args.run(args)
    assert isinstance(code, int)
    return code
