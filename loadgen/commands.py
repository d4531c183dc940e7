"""The commands `lengthwise bench`, `compare` and `simulate`; heavy imports happen when one runs."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

from loadgen.options import BenchFlags, CompareFlags
from loadgen.simulate.flags import VALIDATED_STRATEGIES, SimulateFlags, ValidateFlags, Validation
from models.errors import UsageError
from models.options import Subparsers, add_groups, describe, groups_of, options_of, read_options


def add_bench(subparsers: Subparsers, others: Sequence[Callable[[Subparsers], None]] = ()) -> None:
    """`others` adds subcommands such as `bench engine`."""
    # without abbreviations, which would clash with subcommands' flags
    parser = subparsers.add_parser("bench", allow_abbrev=False, **describe(run_bench))
    add_groups(parser, groups_of(BenchFlags))
    parser.set_defaults(run=run_bench)
    if others:
        below = parser.add_subparsers(title="other benchmarks", metavar="[COMMAND]", required=False)
        for add in others:
            add(below)


def run_bench(args: argparse.Namespace) -> int:
    """Measure a running server under load.

    Sends a workload to any server with an OpenAI-compatible API, each request at its time regardless of those
    before, and reports throughput and latencies. Flags and figures are those of `vllm bench serve`. The exit code is 1
    when no request completed.

    Example: lengthwise bench --num-prompts 50 --request-rate 2
    """
    from loadgen.bench.run import run_bench

    return run_bench(read_options(args, BenchFlags))


def add_compare(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("compare", **describe(run_compare))
    add_groups(parser, groups_of(CompareFlags))
    parser.set_defaults(run=run_compare)


def run_compare(args: argparse.Namespace) -> int:
    """Compare strategies or servers under the same load.

    Plays the same seeded requests through each strategy or server, one after another and in several rounds, and writes
    one report: a page with plots, and JSON. Differences that the rounds do not bear out are not called differences. The
    exit code is 1 when a contestant had to be left out.

    Example: lengthwise compare --strategies baton-pd,lengthwise
    """
    from loadgen.compare.run import run_compare

    return run_compare(read_options(args, CompareFlags))


def add_simulate(subparsers: Subparsers, validate: Callable[[ValidateFlags], int] | None = None) -> None:
    """`validate` compares with the real engine."""

    def run(args: argparse.Namespace) -> int:
        """Compare strategies on simulated executors.

        Runs the real scheduler over simulated executors, which take the time that a cost model says, on a clock that
        jumps from event to event. Nothing else is simulated: decisions are those of `lengthwise serve`.

        Example: lengthwise simulate --strategies vs,scls --rate 10
        """
        if validate is not None and args.validate is not None:
            asked = read_options(args, ValidateFlags)
            return validate(replace(asked, strategies=asked.strategies or VALIDATED_STRATEGIES))
        for one in options_of(Validation):
            if getattr(args, one.name, one.default) != one.default:
                raise UsageError(f"{one.flag} counts only with --validate")
        from loadgen.simulate.run import run_simulate

        return run_simulate(read_options(args, SimulateFlags))

    parser = subparsers.add_parser("simulate", **describe(run))
    add_groups(parser, groups_of(SimulateFlags))
    if validate is not None:
        add_groups(parser, {"The comparison with the real engine": Validation})
    parser.set_defaults(run=run)
