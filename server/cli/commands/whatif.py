"""`lengthwise whatif`: the requests of the journal under other strategies and on other machines, simulated.

It owns the arguments and the errors; loadgen/simulate/whatif.py does the work.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from models.catalog.catalog import default_cache
from models.errors import INTERRUPTED
from models.options import Count, Subparsers, add_options, option, options_of, read_options
from scheduler.options import Scheduling
from server.cli.config import GROUPS, ServeConfig, read_config
from server.cli.settings import add_settings
from server.composition.cache_paths import journal_path, model_key

if TYPE_CHECKING:
    from loadgen.simulate.whatif import Replay, Setting

BEARING = frozenset(
    {"executors", "max_num_seqs", "max_model_len", "max_num_batched_tokens", "journal"}
    | {one.name for one in options_of(Scheduling)}
)
"""The settings of `serve` that bear on a replay."""


@dataclass(frozen=True, kw_only=True)
class Trying:
    """The requests that are replayed, and the strategies that they are replayed under."""

    of: str | None = option(None, "model whose requests are replayed, as the journal names it (default: the latest)")
    last: Count = option(2000, "requests at most, the newest")
    strategies: tuple[str, ...] | None = option(
        None, "strategies to try (default: all that need no other weights)", commas=True, metavar="A,B,..."
    )
    capacity_tokens: Count | None = option(
        None, "tokens of K and V that an executor holds, lengthwise:kv_capacity_tokens in /metrics "
        "(default: enough for all slots)",
    )  # fmt: skip
    save_result: Path | None = option(None, "write the figures as JSON too")


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "whatif",
        help="tell which strategy would have served the journal's requests better",
        description="Replay the newest requests that the server recorded (when they came, how long they were; no "
        "texts) under every strategy and on other sizes of machine, with the prices that were learned on this one, and "
        "say what would have served them better, beside the simulator's error on these very requests. Settings of the "
        "server are read as `lengthwise serve` reads them.",
    )
    add_options(parser, options_of(Trying))
    add_settings(parser, GROUPS, BEARING)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay and tell; returns the exit code. Raises UserError."""
    # These import numpy and the scheduler, which --help can do without.
    from loadgen.console import table_console
    from loadgen.result_file import require_writable, save_json, stoppable
    from loadgen.simulate.whatif import OTHER_SIZES, choose_strategies, read_replay, show, try_all, whatif_json
    from models.progress import Bars

    asked = read_options(args, Trying)
    config = read_config(args)
    require_writable(asked.save_result)
    replay = read_replay(journal_path(default_cache(), config.journal), asked.of and model_key(asked.of), asked.last)
    names = choose_strategies(asked.strategies)
    with stoppable(), Bars(threaded=True) as bars:
        trials = try_all(replay, _setting(asked, config, replay), names)
        found = next(trials)
        bar = bars.begin("replays; Ctrl-C keeps those that have ended", len(names) + 2 * len(OTHER_SIZES))
        try:
            for known in trials:
                found = known
                bar.advance()
        except KeyboardInterrupt:
            found = replace(found, interrupted=True)
    table_console().print(show(found))
    save_json(asked.save_result, whatif_json(found))
    return INTERRUPTED if found.interrupted else 0


def _setting(asked: Trying, config: ServeConfig, replay: Replay) -> Setting:
    from engine.simulated.machine import Machine
    from loadgen.simulate.whatif import Setting
    from scheduler.serving_time.profile_file import latest_profile, read_profile

    prices = read_profile(latest_profile(default_cache(), replay.model)).model
    context = max(config.max_model_len or 0, replay.longest, replay.max_tokens)
    capacity = asked.capacity_tokens or config.expected_slots * context
    chunk = config.chunk_tokens(config.device)
    machine = Machine(
        cost=prices,
        capacity_tokens=capacity,
        max_num_seqs=config.expected_slots,
        context_length=context,
        workers=config.executors or 1,
        max_prefill_tokens=chunk,
        reads_padding=False,
        runs_ahead=True,
    )
    return Setting(config, machine, prices, chunk)
