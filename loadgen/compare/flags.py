"""The flags of `lengthwise compare`. Each value is checked by itself; what flags say together is options.py's."""

from __future__ import annotations

import argparse
from pathlib import Path

from loadgen.compare.plan import LEAST_ROUNDS
from loadgen.flag_values import json_object, natural, pair, positive, unsigned, whole, whole_from


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All but those of the workload."""
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="what the started servers serve (default: as `lengthwise serve`)"
    )
    _add_contestants(parser.add_argument_group("contestants"))
    _add_load(parser.add_argument_group("load"))
    _add_request(parser.add_argument_group("requests"))
    parser.add_argument_group("result").add_argument(
        "--output", type=Path, metavar="FOLDER", help="where report.html and report.json go (default: compare-DATE)"
    )


def _add_contestants(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--strategies",
        type=_names,
        default=(),
        metavar="A,B,...",
        help="start `lengthwise serve` with each of these in turn; one may come twice, to see how far equals differ",
    )
    group.add_argument(
        "--urls", type=_urls, default=(), metavar="NAME=URL,...", help="servers that run already, ours or others"
    )
    group.add_argument(
        "--serve-args",
        default="",
        metavar="TEXT",
        help='flags for every started server, after an equals sign: --serve-args="--max-num-seqs 8 --recompute"',
    )
    group.add_argument(
        "--baseline", metavar="NAME", help="contestant that the others are held against (default: the first)"
    )
    group.add_argument(
        "--ready-check-timeout-sec",
        type=positive,
        default=600.0,
        metavar="SECONDS",
        help="how long a server may take to start (default: %(default)g)",
    )


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--rounds",
        type=whole_from(LEAST_ROUNDS),
        default=LEAST_ROUNDS,
        metavar="N",
        help=f"times that each contestant plays; at least {LEAST_ROUNDS} (default: {LEAST_ROUNDS})",
    )
    group.add_argument(
        "--request-rates",
        type=_numbers,
        metavar="LIST",
        help="requests per second, one run each: 1,2,4,inf (default: the workload's own times, else all at once)",
    )
    group.add_argument(
        "--burstinesses",
        type=_numbers,
        default=(1.0,),
        metavar="LIST",
        help="each with every rate: 1 is a Poisson process, less is burstier, inf is a metronome (default: 1)",
    )
    group.add_argument("--num-prompts", type=whole, default=100, metavar="N", help="of a run (default: 100)")
    group.add_argument("--seed", type=natural, default=0, metavar="N", help="of prompts and arrivals (default: 0)")
    group.add_argument("--max-concurrency", type=whole, metavar="N", help="requests that may be under way")
    group.add_argument(
        "--num-warmups", type=natural, default=4, metavar="N", help="requests before each turn (default: 4)"
    )
    group.add_argument(
        "--timeout",
        type=positive,
        default=600.0,
        metavar="SECONDS",
        help="give a request up when nothing came for so long (default: %(default)g)",
    )


def _add_request(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model",
        dest="ask_model",
        metavar="NAME",
        help="model to ask the servers of --urls for (default: the first that each lists)",
    )
    group.add_argument("--ignore-eos", action="store_true", help="generate on to the length that was asked for")
    group.add_argument(
        "--temperature", type=unsigned, default=0.0, metavar="N", help="0 says the likeliest (default: 0)"
    )
    group.add_argument(
        "--extra-body", type=json_object, default={}, metavar="JSON", help="further fields of every request's body"
    )
    group.add_argument(
        "--header",
        type=pair,
        nargs="*",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="sent to the servers of --urls",
    )
    group.add_argument(
        "--api-key", metavar="KEY", help="sent to the servers of --urls as a bearer token (default: $OPENAI_API_KEY)"
    )


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("names no strategy")
    return names


def _urls(text: str) -> tuple[tuple[str, str], ...]:
    pairs = tuple(pair(part.strip()) for part in text.split(","))
    for name, url in pairs:
        if not url.startswith(("http://", "https://")):
            raise argparse.ArgumentTypeError(f"{name}={url}: the URL must begin with http:// or https://")
    return pairs


def _numbers(text: str) -> tuple[float, ...]:
    """Each once, ascending."""
    try:
        values = sorted({float(part) for part in text.split(",")})
    except ValueError:
        values = []
    if not values or not all(value > 0 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers above 0, such as 1,2.5,4")
    return tuple(values)
