"""Plays the arena: every strategy on the same loads, each run a line of a file, so that one that ends goes on later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from loadgen.experiments.arena.loads import ArenaLoad
from loadgen.experiments.grid.cells import Cell
from loadgen.experiments.grid.figures import Figures, Results
from loadgen.experiments.grid.machines import MACHINES, WIDE_MACHINES
from loadgen.experiments.grid.run import play_cell, run_all
from loadgen.simulate.figures import measure_latencies
from loadgen.simulate.simulation import Served
from scheduler.strategy import STRATEGIES


def run_arena(
    file: Path, loads: Mapping[str, ArenaLoad], count: int, done: Callable[[], None], further: Sequence[str] = ()
) -> Results:
    """Play what the file does not hold yet, further strategies under each load included, and return all; `done` is
    called after each run. Raises UserError.
    """
    counts = {load.cell: round(count * load.share) for load in loads.values()}
    runs = [(load.cell, name) for load in loads.values() for name in (*load.names, *further)]
    return run_all(file, runs, lambda cell, name: _measure(cell, name, counts[cell]), done)


def _measure(cell: Cell, name: str, count: int) -> Figures:
    done = play_cell(cell, STRATEGIES[name], count).requests
    found = measure_latencies(done)
    return {
        "mean": found.jct.mean,
        "p99": found.jct.percentiles[99.0],
        "longest": found.jct.percentiles[100.0],
        "ttft": found.ttft.mean,
        "wait": max(one.started - one.arrival for one in done),
        "throughput": found.throughput,
        "fairness": measure_fairness([measure_slowdown(one, cell.machine) for one in done]),
    }


def measure_slowdown(one: Served, machine: str) -> float:
    """How many times as long a request took as it would alone on this machine."""
    chosen = MACHINES.get(machine) or WIDE_MACHINES[machine]
    cost = chosen.machine.cost
    alone = cost.prefill(1, one.input_length) + cost.decode(1, one.input_length, max(0, one.output_length - 1))
    return (one.end - one.arrival) / alone


def measure_fairness(slowdowns: list[float]) -> float:
    """Jain's index: 1 where all were slowed down alike, 1/n where only one was."""
    values = np.array(slowdowns)
    return float(values.sum() ** 2 / (len(values) * (values**2).sum()))
