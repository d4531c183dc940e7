"""`lengthwise profile`: measure this machine, fit the serving-time model to it, and keep both in the cache.

It owns the arguments, the bars and the errors; composition/profiling.py measures and writes the tables.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.options import Positive, Subparsers, add_options, option, options_of, read_options
from server.cli.config import GROUPS, read_config
from server.cli.settings import add_settings
from server.process.setup import tune_libraries

if TYPE_CHECKING:
    from server.composition.profiling import Watch

BEARING = frozenset(
    {
        "model",
        "dtype",
        "quantization",
        "device",
        "executors",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "kv_cache_memory",
        "gpu_memory_utilization",
    }
)
"""The settings of `serve` that bear on what is measured."""

TIME_LIMIT = 180.0
QUICK_TIME_LIMIT = 60.0


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How thoroughly to measure."""

    quick: bool = option(False, "a coarse grid, for a first estimate")
    time_limit: Positive | None = option(
        None,
        "seconds to measure for; cells that would take too long are left out "
        f"(default: {TIME_LIMIT:g}, with --quick {QUICK_TIME_LIMIT:g})",
    )


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "profile",
        help="measure this machine, so that serving times can be estimated",
        description="Measure prefill and decoding over a grid of batch sizes and lengths, fit the serving-time model "
        "to it, and keep both for `lengthwise serve` with the same settings, which may come from the environment and "
        "a --config file as for `serve`. Nothing else should run on the machine meanwhile.",
    )
    add_settings(parser, GROUPS, BEARING)
    add_options(parser, options_of(Measuring))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, print and keep a profile; returns the exit code."""
    config = read_config(args)
    tune_libraries(os.environ)
    # These import torch, which other commands and --help can do without.
    from models.catalog.catalog import default_cache
    from scheduler.serving_time.profile_file import require_writable, write_profile
    from server.composition.profiling import FULL, QUICK, make_profile, print_report

    require_writable(default_cache())
    measuring = read_options(args, Measuring)
    limit = measuring.time_limit or (QUICK_TIME_LIMIT if measuring.quick else TIME_LIMIT)
    with _show_phases() as watch:
        profile = make_profile(config, QUICK if measuring.quick else FULL, limit, watch)
    path = write_profile(default_cache(), profile)
    print_report(profile)
    print(f"kept in {path}")
    return 0


@contextmanager
def _show_phases() -> Iterator[Watch]:
    """Show a bar for each phase; drawn when a cell is done, not by a thread that would compute beside what is timed."""
    from models.progress import Bar, Bars

    phases: dict[str, Bar] = {}
    with Bars() as bars:

        def watch(phase: str, done: int, total: int) -> None:
            if phase not in phases:
                phases[phase] = bars.begin(phase, total)
            phases[phase].show(done, total=total)

        yield watch
