"""`lengthwise whatif`: the journal under other strategies and machines (loadgen/simulate/whatif.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from models.catalog.catalog import default_cache
from models.errors import INTERRUPTED
from models.options import Count, Subparsers, option, options_of
from scheduler.options import Scheduling
from server.cache_paths import journal_path
from server.config import Execution, MemorySize, Recording, ServeConfig
from server.settings import add_configured

if TYPE_CHECKING:
    from loadgen.simulate.replay import Replay
    from loadgen.simulate.whatif import WhatIfSetting
    from scheduler.serving_time.profile_file import Profile


@dataclass(frozen=True, kw_only=True)
class Trying:
    """Replay: which requests, and under which strategies."""

    of: str | None = option(None, "model whose requests are replayed, as the journal names it (default: the latest)")
    last: Count = option(2000, "answered requests at most, newest")
    strategies: tuple[str, ...] | None = option(None, commas=True, metavar="A,B,...")
    """strategies to try (default: all that need no other weights)"""
    capacity_tokens: Count | None = option(None)
    """tokens of KV cache that an executor holds, lengthwise:kv_capacity_tokens in /metrics (default: enough for all
    slots)"""
    save_result: Path | None = option(None, "write the figures as JSON too")


@dataclass(frozen=True, kw_only=True)
class Whatif(ServeConfig, Trying):
    """The settings of a server, and how its journal is replayed."""


SIZES = ("device", "max_num_seqs", "max_model_len", "executors", "max_num_batched_tokens")


def add_parser(subparsers: Subparsers) -> None:
    names = [one.name for part in (Trying, Scheduling) for one in options_of(part)]
    parts = (Trying, MemorySize, Execution, Scheduling, Recording)
    add_configured(subparsers, "whatif", Whatif, run, *parts, names=(*names, *SIZES, "journal"))


def run(config: Whatif) -> int:
    """Find which strategy would have served the journal's requests better.

    Replays the newest recorded requests (times and lengths, no texts) under every strategy and on other
    sizes of machine, at prices learned on this one or, of a gateway's backend, fitted to its answers, with
    the simulator's error on them. Give the flags, variables or --config file that the server had.

    Example: lengthwise whatif
    """
    # numpy, not needed for --help
    from loadgen.console import table_console
    from loadgen.result_file import require_writable, save_json
    from loadgen.simulate.replay import read_replay
    from loadgen.simulate.whatif import OTHER_SIZES, choose_strategies, show, try_all, whatif_json
    from loadgen.turns import collect
    from models.progress import Bars
    from models.signals import stoppable
    from scheduler.serving_time.profile_file import find_profile

    require_writable(config.save_result)
    profiled = partial(find_profile, default_cache())
    replay = read_replay(journal_path(default_cache(), config.journal), config.of, config.last, profiled)
    setting = _setting(config, replay, profiled(replay.model))
    names = choose_strategies(config.strategies, sent=replay.sent)
    with stoppable(), Bars(threaded=True) as bars:
        trials = try_all(replay, setting, names)
        first = next(trials)
        bar = bars.begin("replaying (Ctrl-C shows what has ended)", len(names) + 2 * len(OTHER_SIZES))
        later, whole = collect(trials, lambda _: bar.advance())
    found = replace([first, *later][-1], interrupted=not whole)
    table_console().print(show(found))
    save_json(config.save_result, whatif_json(found))
    return INTERRUPTED if found.interrupted else 0


def _setting(config: Whatif, replay: Replay, profile: Profile | None) -> WhatIfSetting:
    from engine.simulated.machine import Machine
    from loadgen.simulate.whatif import WhatIfSetting, fit_prices

    prices, slots = fit_prices(replay.recorded) if profile is None else (profile.model, config.expected_slots)
    slots = config.max_num_seqs or slots
    context = max(config.max_model_len or 0, replay.longest, replay.max_tokens)
    chunk = config.chunk_tokens(config.device)
    machine = Machine(
        cost=prices,
        capacity_tokens=config.capacity_tokens or slots * context,
        max_num_seqs=slots,
        context_length=context,
        workers=config.executors or 1,
        max_prefill_tokens=chunk,
        reads_padding=False,
        runs_ahead=True,
    )
    return WhatIfSetting(config, machine, prices, chunk)
