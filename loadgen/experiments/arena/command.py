"""`lengthwise arena`: every strategy on the same simulated loads, one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from models.errors import INTERRUPTED
from models.flags import Subparsers, add_command
from models.options import Count, option


@dataclass(frozen=True, kw_only=True)
class Arena:
    """The loads and strategies that are played, and the file that the outcome goes to."""

    save_result: Path = option(
        Path("arena.jsonl"), "a line a run is appended here; what the file holds already is not played again"
    )
    num_prompts: Count = option(600, "requests of a run; two and a half times as many with 256 slots")
    trace: tuple[str, ...] = option(
        (), "traces, whose lengths are loads too: Azure's or BurstGPT's CSV, Mooncake's JSON lines", metavar="FILE"
    )
    strategies: tuple[str, ...] = option((), "PACKAGE:ROW or FILE.py:ROW, to play too", commas=True, metavar="A,B,...")
    report: Path | None = option(None, "write the page as HTML")


def add_parser(subparsers: Subparsers) -> None:
    """Add the command to the program's own."""
    add_command(
        subparsers,
        "arena",
        Arena,
        _play,
        help="compare all strategies in the simulator",
        description="Simulate every strategy on the same loads, where few come and where too many do, with good and "
        "with misleading predictions, and print completion times, times to the first token, normalized latencies "
        "(completion time by tokens of the answer), slowdowns, throughput, longest waits and fairness.",
    )


def _play(asked: Arena) -> int:
    # These import numpy and the scheduler, which --help can do without.
    from loadgen.console import table_console, tell_duration
    from loadgen.experiments.arena.loads import find_loads
    from loadgen.experiments.arena.report import make_page, tabulate
    from loadgen.experiments.grid.loads import check_traces
    from loadgen.experiments.grid.run import estimate_seconds, show_playing
    from loadgen.html.plot import require_drawing
    from loadgen.html.table import show_table
    from loadgen.result_file import require_writable, save
    from scheduler.assembly import find_strategies
    from scheduler.strategy import STRATEGIES

    further = find_strategies(asked.strategies)
    require_writable(asked.save_result)
    require_writable(asked.report, "--report")
    require_drawing(asked.report, "--report")
    check_traces(asked.trace, asked.num_prompts, seeds=1)
    loads = find_loads(asked.trace, asked.num_prompts)
    runs = [(load.cell, STRATEGIES[name]) for load in loads.values() for name in (*load.names, *further)]
    console = table_console()
    console.print(tell_duration(estimate_seconds(asked.save_result, runs)), highlight=False)
    results, complete = show_playing("arena", asked.save_result, runs)
    played = {name: load for name, load in loads.items() if load.cell in results}
    for table in tabulate(results, played):
        console.print(show_table(table))
    if asked.report and played:
        save(asked.report, make_page(results, played).encode(), "--report")
    return 0 if complete else INTERRUPTED
