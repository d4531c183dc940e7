"""Baton's tables on the real engine: what `lengthwise bench baton` does, under the flags of `lengthwise paper`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fractions import Fraction

from loadgen.experiments.baton import command
from loadgen.experiments.paper.real.options import refuse_for_baton, refuse_simulated
from loadgen.experiments.paper.run import choose

TARGETS = {"table-1": 1, "table-2": 2}


def run_baton(args: argparse.Namespace) -> int:
    """Measure both tables, or the chosen ones; returns the exit code. Raises PaperError."""
    refuse_simulated(args)
    refuse_for_baton(args)
    chosen = choose(list(TARGETS), args.experiments)
    bench = _parser().parse_args(["baton", *_flags(args, chosen)])
    return int(bench.run(bench))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return parser


def _flags(args: argparse.Namespace, chosen: Sequence[str]) -> list[str]:
    """A given scale is Table 1's; queries of Table 2, which are short, keep their proportion to those."""
    flags = [] if args.model is None else [args.model]
    flags += ["--target", *(str(TARGETS[name]) for name in chosen), "--seed", str(args.seed)]
    if args.length_scale is not None:
        scale = Fraction(str(args.length_scale))
        flags += ["--scale", str(scale), "--short-scale", str(scale * command.SHORT_SCALE / command.SCALE)]
    if args.rounds is not None:
        flags += ["--rounds", str(args.rounds)]
    if args.save_result is not None:
        flags += ["--save-result", str(args.save_result)]
    return flags
