"""`lengthwise profile`: measures this machine (composition/profiling.py)."""

import os
from dataclasses import dataclass
from functools import partial

from models.options import Positive, Subparsers, option
from models.progress import Bar, Bars
from server.config import Execution, MemorySize, Model, ServeConfig
from server.process.setup import tune_libraries
from server.settings import add_configured

TIME_LIMIT = 180.0
QUICK_TIME_LIMIT = 60.0


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """Measuring: how thoroughly."""

    quick: bool = option(False, "a coarse grid, for a first estimate")
    time_limit: Positive | None = option(
        None,
        "seconds to measure for; cells that would take too long are left out "
        f"(default: {TIME_LIMIT:g}, with --quick {QUICK_TIME_LIMIT:g})",
    )


@dataclass(frozen=True, kw_only=True)
class Profiling(ServeConfig, Measuring):
    """The settings of a server, and how thoroughly to measure it."""


def add_parser(subparsers: Subparsers) -> None:
    add_configured(subparsers, "profile", Profiling, run, Measuring, Model, MemorySize, Execution)


def run(config: Profiling) -> int:
    """Measure this machine, so that serving times can be estimated.

    Measures prefill and decoding over a grid of batch sizes and lengths, fits the serving-time model to it, and keeps
    both for `lengthwise serve` with the same settings, which may come from the environment and a --config file as for
    `serve`. Nothing else should run on the machine meanwhile.

    Example: lengthwise profile --quick
    """
    tune_libraries(os.environ)
    # torch, not needed for --help
    from models.catalog.catalog import default_cache
    from scheduler.serving_time.profile_file import require_writable, write_profile
    from server.composition.profiling import FULL, QUICK, make_profile, print_report

    require_writable(default_cache())
    limit = config.time_limit or (QUICK_TIME_LIMIT if config.quick else TIME_LIMIT)
    with Bars() as bars:  # drawn after cells: a thread would disturb the timing
        profile = make_profile(config, QUICK if config.quick else FULL, limit, partial(_show, bars, {}))
    path = write_profile(default_cache(), profile)
    print_report(profile)
    print(f"kept in {path}")
    return 0


def _show(bars: Bars, phases: dict[str, Bar], phase: str, done: int, total: int) -> None:
    if phase not in phases:
        phases[phase] = bars.begin(phase, total)
    phases[phase].show(done, total=total)
