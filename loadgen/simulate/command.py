"""`lengthwise simulate`: strategies on machines that are not here, in seconds instead of hours.

It owns the flags and the errors; run.py does the work.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.simulate.options import (
    VALIDATED_STRATEGIES,
    Result,
    SimulatedLoad,
    SimulatedMachine,
    SimulatedScheduling,
    SimulateFlags,
)
from loadgen.workload import flags as workload_flags
from models.flags import add_groups, read_options
from models.options import Count, option

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

Validate = Callable[[argparse.Namespace], int]


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The comparison with the real engine."""

    validate: str | None = option(
        None,
        "play one trace on the real engine and in the simulator with this machine's profile, and tell how far apart "
        "they are at the speed of that run; the exit code is 1 when a mean is more than 5 % off, or a p99 more than "
        "10 %. The engine's settings come from the environment, as "
        "for `lengthwise serve`, and from the flags above that mean the same; not --cost",
        nargs="?",
        const="",
        metavar="MODEL",
    )
    rhos: tuple[float, ...] = option(
        (0.5, 0.9, 1.0, 1.3),
        "with --validate and without --rate: loads, as shares of what each strategy serves when all requests "
        "come at once",
        commas=True,
        metavar="N,N,...",
    )
    quick: bool = option(False, "with --validate: a shorter trace")
    num_requests: Count | None = option(None, "with --validate and without --rate: requests of each load")


def add_parser(subparsers: Subparsers, cache: Callable[[], Path], validate: Validate | None = None) -> None:
    """Add the command and its flags to the program's own; `cache` is the folder where this machine's profiles are.

    `validate` compares a simulation with the real engine; without it there is no flag for that.
    """
    parser = subparsers.add_parser(
        "simulate",
        help="compare strategies on simulated executors",
        description="Run the real scheduler over simulated executors, which take the time that a cost model says, on "
        "a clock that jumps from event to event. Nothing else is simulated: decisions are those of `lengthwise serve`.",
    )
    groups = {"machine": SimulatedMachine, "scheduling": SimulatedScheduling, "load": SimulatedLoad}
    add_groups(parser, {**groups, "workload": workload_flags.Workload, "result": Result})
    if validate is not None:
        add_groups(parser, {"validation": Validation})
    parser.set_defaults(run=run, cache=cache, validator=validate)
    if validate is None:
        parser.set_defaults(validate=None)


def run(args: argparse.Namespace) -> int:
    """Simulate; returns the exit code: 1 when it cannot be done."""
    if args.validate is not None:
        args.strategies = tuple(dict.fromkeys(args.strategies or VALIDATED_STRATEGIES))
        return int(args.validator(args))
    from loadgen.simulate.run import run_simulate  # numpy and the scheduler, which --help can do without

    return run_simulate(read_options(args, SimulateFlags), args.cache)
