"""The load of a validation: a few minutes at most, and as heavy as the machine's own model says that it can bear."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadgen.load.arrivals import Arrivals, arrival_times
from loadgen.simulate.load import simulated_load
from loadgen.simulate.options import LoadFlags
from loadgen.workload.lengths import Lengths
from models.flags import read_options

PROBE = 64
"""Requests, all there from the start, that show what a strategy can serve."""


@dataclass(frozen=True, slots=True)
class Size:
    """Bounds of a run's duration and, unless flags say, of its lengths."""

    duration: float
    """Most seconds of arrivals."""
    max_input: int
    max_output: int
    least: int
    """Requests, however slow the machine is: a few say nothing."""


FULL = Size(120.0, 512, 256, 40)
QUICK = Size(20.0, 256, 160, 10)


def lengths(args: argparse.Namespace, context_length: int) -> list[Lengths]:
    """The requests that the flags ask for, at --rate or, without it, all at the start; raises UserError.

    Lengths are clipped, so that an engine of this context can hold each.
    """
    size = QUICK if args.quick else FULL
    args = argparse.Namespace(**vars(args))
    args.duration = min(args.duration, size.duration)
    args.max_input_len = min(args.max_input_len or size.max_input, context_length // 2)
    args.max_output_len = min(args.max_output_len or size.max_output, context_length // 2)
    if args.rate is not None:
        return simulated_load(read_options(args, LoadFlags))
    args.rate, args.duration = float(PROBE), 1.0
    return [replace(one, arrival=0.0) for one in simulated_load(read_options(args, LoadFlags))]


def paced(args: argparse.Namespace, probe: Sequence[Lengths], rate: float) -> list[Lengths]:
    """Requests of the probe's kind, so many a second."""
    size = QUICK if args.quick else FULL
    duration = min(args.duration, size.duration)
    count = args.num_requests or max(size.least, round(rate * duration))
    times = arrival_times(Arrivals(rate, args.burstiness), count, np.random.default_rng(args.seed))
    return [replace(probe[place % len(probe)], arrival=float(time)) for place, time in enumerate(times)]
