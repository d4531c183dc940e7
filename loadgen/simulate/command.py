"""`lengthwise simulate`: strategies on machines that are not here, in seconds instead of hours.

It owns the flags and the errors; simulate.py does the work.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.flag_values import factor, natural, positive, unsigned, whole
from loadgen.workload import flags as workload_flags

if TYPE_CHECKING:
    from loadgen.simulate.prediction import Prediction

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULT_STRATEGIES = ("vs", "baton-pd")
VALIDATED_STRATEGIES = ("baton-pd", "vs", "scls")
DEFAULT_PREDICTION = "noisy:0.3"
DEFAULT_COST = "a100-llama2-13b-hf"

Validate = Callable[[argparse.Namespace], int]


def add_parser(subparsers: Subparsers, cache: Callable[[], Path], validate: Validate | None = None) -> None:
    """Add the command and its flags to the program's own; `cache` is the folder where this machine's profiles are.

    `validate` holds a simulation against the real engine; without it there is no flag for that.
    """
    parser = subparsers.add_parser(
        "simulate",
        help="compare strategies on simulated executors",
        description="Run the real scheduler over simulated executors, which take the time that a cost model says, on "
        "a clock that jumps from event to event. Nothing else is simulated: decisions are those of `lengthwise serve`.",
    )
    _add_machine(parser.add_argument_group("machine"))
    _add_scheduling(parser.add_argument_group("scheduling"))
    _add_load(parser.add_argument_group("load"))
    workload_flags.add_flags(parser)
    parser.add_argument("--save-result", type=Path, metavar="FILE", help="write figures and all requests as JSON")
    if validate is not None:
        _add_validation(parser.add_argument_group("validation"))
    parser.set_defaults(run=run, cache=cache, validator=validate, validate=None)


def _add_validation(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--validate",
        nargs="?",
        const="",
        metavar="MODEL",
        help="play one trace on the real engine and in the simulator with this machine's profile, and tell how far "
        "apart they are; the exit code is 1 when that is more than 15 %%. The engine's settings come from the "
        "environment, as for `lengthwise serve`, and from the flags above that mean the same; not --cost",
    )
    group.add_argument("--quick", action="store_true", help="with --validate: a shorter trace")


def _add_machine(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--cost",
        default=DEFAULT_COST,
        metavar="NAME",
        help="how fast executors are: v100-chatglm-6b, a100-llama2-13b-hf, a100-llama2-13b-ds or ssjf, as the papers "
        "tell; a profile's file; or `profile`, the latest of this machine (default: %(default)s)",
    )
    _add(group, "--workers", "executors (default: the preset's, else 1)")
    _add(group, "--capacity-tokens", "tokens of K and V that each holds (default: the preset's)")
    _add(group, "--max-num-seqs", "rows that each runs at once (default: the preset's, else 32)")
    _add(
        group,
        "--max-model-len",
        "longest prompt plus answer; unless --max-input-len or --max-output-len is given, longer answers "
        "end there and longer prompts are left out (default: the preset's, else the capacity)",
    )
    _add(group, "--max-num-batched-tokens", "prompt cells to read at a time (default: a whole group's, up to 8192)")


def _add_scheduling(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--strategies",
        type=_names,
        metavar="A,B,...",
        help=f"strategies of `lengthwise serve` (default: {','.join(DEFAULT_STRATEGIES)}; with --validate "
        f"{','.join(VALIDATED_STRATEGIES)})",
    )
    _add(group, "--slice-length", "iterations of a slice, for strategies that slice (default: 128)", default=128)
    _add(group, "--max-batch-size", "rows of a batch that nobody joins (default: as many as there is room for)")
    _add(group, "--prefill-ahead", "rows to prefill before a slot is free (default: an eighth of --max-num-seqs)")
    group.add_argument(
        "--batch-wait-timeout",
        type=unsigned,
        default=0.0,
        metavar="S",
        help="seconds to wait for a batch to fill up (default: 0)",
    )
    group.add_argument(
        "--aging-factor",
        type=unsigned,
        default=10.0,
        metavar="N",
        help="times its predicted time after which a request is no longer passed, where the shortest goes first "
        "(default: %(default)g)",
    )
    group.add_argument(
        "--overtaking-factor",
        type=unsigned,
        default=0.8,
        metavar="N",
        help="how much of what waits may be served before a request though it came later, where the cheapest goes "
        "first (default: %(default)g)",
    )
    group.add_argument(
        "--outlier-factor",
        type=factor,
        default=3.0,
        metavar="N",
        help="times that for the most expensive one of 200 requests; 1: as for all others (default: %(default)g)",
    )
    group.add_argument(
        "--prediction",
        type=_prediction,
        default=DEFAULT_PREDICTION,
        metavar="HOW",
        help="what strategies that ask for predicted lengths are told: none; oracle, the true ones; or noisy:SIGMA, "
        "with log-normal errors of that standard deviation (default: %(default)s)",
    )
    group.add_argument("--min-interval", type=unsigned, metavar="S", help="Γ of SCLS: seconds between two arrangements")
    group.add_argument(
        "--recompute", action="store_true", help="rows lose their K and V between slices, as SCLS has it"
    )


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--rate", type=positive, metavar="RPS", help="requests a second (default: a trace's own times, else 20)"
    )
    group.add_argument(
        "--burstiness", type=positive, default=1.0, metavar="N", help="1 is Poisson, less is burstier (default: 1)"
    )
    group.add_argument(
        "--duration", type=positive, default=120.0, metavar="S", help="seconds of arrivals (default: %(default)g)"
    )
    group.add_argument("--seed", type=natural, default=0, metavar="N", help="of lengths and arrivals (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Simulate; returns the exit code: 1 when it cannot be done."""
    if args.strategies is None:
        args.strategies = DEFAULT_STRATEGIES if args.validate is None else VALIDATED_STRATEGIES
    if args.validate is not None:
        return int(args.validator(args))
    from loadgen.simulate.run import run_simulate  # numpy and the scheduler, which --help can do without

    return run_simulate(args)


def _add(group: argparse._ArgumentGroup, flag: str, help: str, default: int | None = None) -> None:
    group.add_argument(flag, type=whole, default=default, metavar="N", help=help)


def _prediction(text: str) -> Prediction:
    from loadgen.simulate.prediction import read_prediction  # numpy, which --help can do without

    try:
        return read_prediction(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise argparse.ArgumentTypeError("names no strategy")
    return names
