"""Runs the grid: one simulation a cell and contender, each a line of a file, so that a run that ends goes on later."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from engine.sampling.params import SamplingParams
from loadgen.experiments.grid.cells import Cell
from loadgen.experiments.grid.contenders import BASE, BOOST, CONTENDERS
from loadgen.experiments.grid.figures import Figures, Results
from loadgen.experiments.grid.loads import load_lengths
from loadgen.experiments.grid.machines import MACHINES, WIDE_MACHINES
from loadgen.load.arrivals import Arrivals, arrival_times
from loadgen.simulate.prediction import Forecast, Predict, read_prediction, replay_forecasts
from loadgen.simulate.run import GROUP_TOKENS
from loadgen.simulate.simulation import Simulation, simulate
from loadgen.workload.lengths import Lengths
from scheduler.assembly import assemble
from scheduler.batching.batcher import Limits
from scheduler.options import Scheduling
from scheduler.strategy import Length, Strategy


def run_grid(file: Path, cells: Sequence[Cell], count: int, done: Callable[[], None]) -> Results:
    """Play what the file does not hold yet, and return all; `done` is called after each run. Raises UserError."""
    runs = [(cell, name) for cell in cells for name in CONTENDERS]
    return run_all(file, runs, lambda cell, name: measure(cell, name, count), done)


def run_all(
    file: Path, runs: Iterable[tuple[Cell, str]], play: Callable[[Cell, str], Figures], done: Callable[[], None]
) -> Results:
    """Play the runs (cell, contender) that the file does not hold yet, each a line of it, and return all."""
    results = _read(file)
    with file.open("a") as lines:
        for cell, name in runs:
            found = results.setdefault(cell, {})
            if name not in found:
                found[name] = play(cell, name)
                print(json.dumps([asdict(cell), name, found[name]]), file=lines, flush=True)
            done()
    return results


def _read(file: Path) -> dict[Cell, dict[str, Figures]]:
    results: dict[Cell, dict[str, Figures]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        cell, name, found = json.loads(line)
        results.setdefault(Cell(**cell), {})[name] = found
    return results


def measure(cell: Cell, name: str, count: int) -> Figures:
    """The figures of one run of so many requests; times in seconds, requests a second."""
    done = play_cell(cell, CONTENDERS[name], count)
    jct = np.array([one.end - one.arrival for one in done.requests])
    return {
        "mean": float(jct.mean()),
        "p99": float(np.percentile(jct, 99)),
        "longest": float(jct.max()),
        "throughput": done.throughput,
    }


def play_cell(cell: Cell, strategy: Strategy, count: int) -> Simulation:
    """One run of so many requests."""
    lengths = load_lengths(cell.load, count, cell.seed)
    served = measure_capacity(cell.machine, cell.load, count, cell.seed)
    times = arrival_times(
        Arrivals(cell.rho * served, cell.burstiness), len(lengths), np.random.default_rng(cell.seed + 1)
    )
    load = [replace(one, arrival=float(time)) for one, time in zip(lengths, times, strict=True)]
    answers = tuple(one.output_length for one in load)
    told = answers if strategy.length == Length.ORACLE else _forecasts(cell.prediction, cell.seed, answers)
    return _play(cell.machine, strategy, load, served, replay_forecasts(told))


@lru_cache(maxsize=1)
def _forecasts(prediction: str, seed: int, answers: tuple[int, ...]) -> tuple[Forecast, ...]:
    """Predicted lengths of a load, the same for every contender."""
    source, most = read_prediction(prediction).source(seed), max(answers)
    assert source is not None, "every cell predicts"
    return tuple(source(SamplingParams(most, replay_tokens=answer)) for answer in answers)


@cache
def measure_capacity(machine: str, load: str, count: int, seed: int) -> float:
    """Requests a second that BASE serves where all come at once; the last tenth, which runs beside few, left out."""
    lengths = [replace(one, arrival=0.0) for one in load_lengths(load, count, seed)]
    ends = sorted(one.end for one in _play(machine, CONTENDERS[BASE], lengths, 1.0, None).requests)
    most = int(0.9 * len(ends))
    return most / ends[most - 1]


def _play(
    machine: str, strategy: Strategy, load: Sequence[Lengths], served: float, predict: Predict | None
) -> Simulation:
    """A load on a machine by a rule; `served` requests a second tell what the mean one takes, for boost."""
    chosen = MACHINES.get(machine) or WIDE_MACHINES[machine]
    sizes = chosen.machine
    limits = Limits.of(Scheduling(boost_gamma=served / BOOST), GROUP_TOKENS, sizes.max_num_seqs)
    limits = limits.within(sizes.capacity_tokens, sizes.context_length, sizes.max_num_seqs)
    parts = assemble(strategy, limits, chosen.profile)
    return simulate(parts, sizes, load, max(one.output_length for one in load), predict=predict)
