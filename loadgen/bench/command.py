"""The command `lengthwise bench`, which measures a running server under load.

Other benchmarks may stand as commands of their own below this one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from loadgen.bench.flags import add_flags
from models.flags import Subparsers


def add_parser(subparsers: Subparsers, others: Sequence[Callable[[Subparsers], None]] = ()) -> None:
    """Add the command and its flags to the program's own; `others` add commands such as `bench engine` below it."""
    parser = subparsers.add_parser(
        "bench",
        help="measure a running server under load",
        description="Send a workload to any server with an OpenAI-compatible API, each request at its time whatever "
        "became of those before, and report throughput and latencies. Flags and figures are those of "
        "`vllm bench serve`.",
        allow_abbrev=False,  # else flags of the commands below that begin as several of its own are refused
    )
    add_flags(parser)
    parser.set_defaults(run=run)
    if others:
        below = parser.add_subparsers(title="other benchmarks", metavar="COMMAND", required=False)
        for add in others:
            add(below)


def run(args: argparse.Namespace) -> int:
    """Benchmark a server; returns the exit code: 1 when no request completed, 130 when it was interrupted."""
    from loadgen.bench.output import run_bench  # aiohttp and more, which --help can do without

    return run_bench(args)
