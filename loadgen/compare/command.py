"""The command `lengthwise compare`: strategies and servers side by side, in a report that a sceptic can check."""

from __future__ import annotations

import argparse

from loadgen.compare.flags import add_flags
from models.flags import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "compare",
        help="compare strategies or servers under the same load",
        description="Play the same seeded requests through each strategy or server, one after another and in several "
        "rounds, and write one report: a page with plots, and JSON. Differences that the rounds do not bear out are "
        "not called differences.",
    )
    add_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare; returns the exit code: 1 when a contestant had to be left out, 130 when it was interrupted."""
    from loadgen.compare.compare import run_compare  # aiohttp and more, which --help can do without

    return run_compare(args)
