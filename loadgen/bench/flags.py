"""The flags of `lengthwise bench`, named as those of `vllm bench serve` where they mean the same.

Each value is checked by itself; what flags say together is bench_options.py's.
"""

from __future__ import annotations

import argparse
import math
import uuid
from collections.abc import Callable
from pathlib import Path

from loadgen.bench.metrics import DEFAULT_METRICS, GOODPUT_METRICS, METRICS
from loadgen.flag_values import json_object, natural, pair, whole, whole_from


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All but those of the workload."""
    _add_server(parser.add_argument_group("server"))
    _add_load(parser.add_argument_group("load"))
    _add_request(parser.add_argument_group("requests"))
    _add_result(parser.add_argument_group("result"))


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--base-url", metavar="URL", help="where the server listens (default: http://HOST:PORT)")
    group.add_argument("--host", default="127.0.0.1", help="(default: %(default)s)")
    group.add_argument("--port", type=whole, default=8000, metavar="N", help="(default: %(default)s)")
    group.add_argument(
        "--endpoint", metavar="PATH", help="path of the API (default: the one of chats or completions, as prompts need)"
    )
    group.add_argument("--model", metavar="NAME", help="model to ask for (default: the first that the server lists)")
    group.add_argument(
        "--header", type=pair, nargs="*", action="extend", default=[], metavar="KEY=VALUE", help="sent along"
    )
    group.add_argument("--api-key", metavar="KEY", help="sent as a bearer token (default: $OPENAI_API_KEY)")
    group.add_argument(
        "--timeout",
        type=_number(above=0),
        default=600.0,
        metavar="SECONDS",
        help="give a request up when nothing came for so long (default: %(default)g)",
    )


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--num-prompts", type=whole, default=100, metavar="N", help="(default: %(default)s)")
    group.add_argument(
        "--seed", type=natural, default=0, metavar="N", help="of prompts, arrivals, cancellations (default: 0)"
    )
    group.add_argument(
        "--request-rate",
        type=_number(above=0, infinite=True),
        metavar="RPS",
        help="requests per second, or inf for all at once (default: the workload's own times, else inf)",
    )
    group.add_argument(
        "--burstiness",
        type=_number(above=0, infinite=True),
        default=1.0,
        metavar="N",
        help="gaps follow Gamma(shape=N, scale=1/(RPS*N)): 1 is a Poisson process, less is burstier, "
        "inf is a metronome (default: 1)",
    )
    group.add_argument("--max-concurrency", type=whole, metavar="N", help="requests that may be under way")
    group.add_argument("--num-warmups", type=natural, default=1, metavar="N", help="requests before (default: 1)")
    group.add_argument("--ramp-up-strategy", choices=("linear", "exponential"), help="how the rate changes")
    group.add_argument("--ramp-up-start-rps", type=_number(above=0), metavar="RPS", help="rate of the first request")
    group.add_argument("--ramp-up-end-rps", type=_number(above=0), metavar="RPS", help="rate of the last request")
    group.add_argument(
        "--cancel-rate",
        type=_number(low=0, high=1),
        default=0.0,
        metavar="SHARE",
        help="share of the requests whose client leaves, 0 to 1 (default: 0)",
    )
    group.add_argument(
        "--cancel-delay",
        type=_number(low=0),
        default=1.0,
        metavar="SECONDS",
        help="how long after sending such a client leaves (default: 1)",
    )


def _add_request(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--ignore-eos", action="store_true", help="generate on to the length that was asked for")
    group.add_argument(
        "--temperature", type=_number(low=0), default=0.0, metavar="N", help="0 says the likeliest (default: 0)"
    )
    group.add_argument("--top-p", type=_number(above=0, high=1), metavar="N", help="nucleus sampling")
    group.add_argument("--top-k", type=whole_from(-1), metavar="N", help="sample among so many")
    group.add_argument("--min-p", type=_number(low=0, high=1), metavar="N", help="least share of the likeliest")
    group.add_argument(
        "--extra-body", type=json_object, default={}, metavar="JSON", help="further fields of every request's body"
    )
    group.add_argument(
        "--request-id-prefix",
        default=f"bench-{uuid.uuid4().hex[:8]}-",
        metavar="TEXT",
        help="begins every x-request-id (default: bench- and a random word)",
    )


def _add_result(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--percentile-metrics",
        type=_metrics,
        default=DEFAULT_METRICS,
        metavar="NAMES",
        help=f"what to report, of {','.join(METRICS)} (default: {','.join(DEFAULT_METRICS)})",
    )
    group.add_argument(
        "--metric-percentiles",
        type=_percentiles,
        default=(90.0, 95.0, 99.0),
        metavar="LIST",
        help="(default: 90,95,99; the median comes anyway)",
    )
    group.add_argument(
        "--goodput",
        type=_goal,
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME:MS",
        help=f"count requests that keep all of these bounds, of {', '.join(GOODPUT_METRICS)}, such as ttft:500 tpot:50",
    )
    group.add_argument("--save-result", action="store_true", help="write a JSON file")
    group.add_argument("--save-detailed", action="store_true", help="... with times and texts of every request")
    group.add_argument("--result-dir", type=Path, metavar="FOLDER", help="where to write it (default: here)")
    group.add_argument("--result-filename", metavar="NAME", help="(default: label, rate, model and date)")
    group.add_argument("--label", default="lengthwise", metavar="TEXT", help="begins the file's name, stands in it")
    group.add_argument(
        "--metadata", type=pair, nargs="*", action="extend", default=[], metavar="KEY=VALUE", help="noted in the file"
    )


def _number(
    *, low: float = -math.inf, above: float = -math.inf, high: float = math.inf, infinite: bool = False
) -> Callable[[str], float]:
    """A converter for numbers in [low, high] and greater than `above`."""

    def convert(text: str) -> float:
        value = float(text)
        if not (low <= value <= high and value > above) or (math.isinf(value) and not infinite):
            raise argparse.ArgumentTypeError(f"{text} is not {_range(low, above, high)}")
        return value

    convert.__name__ = "number"  # argparse names it when the text is none
    return convert


def _range(low: float, above: float, high: float) -> str:
    bounds = [(f"at least {low:g}", low), (f"above {above:g}", above), (f"at most {high:g}", high)]
    return "finite and " + " and ".join(text for text, bound in bounds if math.isfinite(bound))


def _metrics(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in METRICS]:
        raise argparse.ArgumentTypeError(f"{', '.join(map(repr, unknown))}: choose from {', '.join(METRICS)}")
    return tuple(dict.fromkeys(names))


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(0 < value <= 100 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers above 0 and at most 100, such as 50,99.9")
    return values


def _goal(text: str) -> tuple[str, float]:
    name, _, bound = text.partition(":")
    try:
        seconds = float(bound) / 1000
    except ValueError:
        seconds = math.nan
    if name not in GOODPUT_METRICS or not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME:MILLISECONDS with a name of {', '.join(GOODPUT_METRICS)}"
        )
    return name, seconds
