"""`lengthwise openapi`: the API as an OpenAPI document, on standard output."""

from __future__ import annotations

import argparse
import sys

from models.flags import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Add the command to the program's."""
    what = "write the API as an OpenAPI document"
    parser = subparsers.add_parser("openapi", help=what, description=f"{what[0].upper()}{what[1:]} to standard output.")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the document."""
    from server.api.openapi import encode_document
    from server.api.operations import OPERATIONS

    sys.stdout.write(encode_document(OPERATIONS).decode())
    return 0
