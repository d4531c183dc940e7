"""The figures of a run, and by how much each contender's differ from those of first come, first served."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from loadgen.experiments.grid.cells import BASE, Cell
from loadgen.simulate.figures import measure_latencies, measure_slowdown
from loadgen.simulate.node import Machine
from loadgen.simulate.simulation import Served, Simulation

KINDS = ("jct", "ttft", "normalized", "slowdown")
"""Completion time, time to the first token, completion time by the answer's tokens, and by the request's time alone."""

Figures = Mapping[str, float]
Results = Mapping[Cell, Mapping[str, Figures]]
"""Cell -> contender -> figures."""


def measure(done: Simulation, machine: Machine, base: Sequence[Served]) -> Figures:
    """The figures of a run, `base` being the same requests served by BASE: of each of KINDS mean, p99 and worst, in
    seconds but for the slowdown; requests a second; Jain's index of slowdowns; and how much later than by BASE the
    latest request ended, by BASE's p99 of completion times."""
    requests = done.requests
    latencies = measure_latencies(requests, machine.cost)
    spreads = {"jct": latencies.jct, "ttft": latencies.ttft, "normalized": latencies.normalized_latency}
    found: dict[str, float] = {}
    for kind, spread in (spreads | {"slowdown": latencies.slowdown}).items():
        assert spread is not None, "the machine is known"
        found |= {f"{kind}_mean": spread.mean, f"{kind}_median": spread.percentiles[50.0]}
        found |= {f"{kind}_p99": spread.percentiles[99.0], f"{kind}_worst": spread.percentiles[100.0]}
    later = max(one.end - other.end for one, other in zip(requests, base, strict=True))
    return found | {
        "wait": max(one.started - one.arrival for one in requests),
        "throughput": done.throughput,
        "fairness": measure_fairness([measure_slowdown(one, machine.cost) for one in requests]),
        "later": later / measure_latencies(base).jct.percentiles[99.0],
    }


def measure_fairness(slowdowns: Sequence[float]) -> float:
    """Jain's index: 1 where all were slowed down alike, 1/n where only one was."""
    return sum(slowdowns) ** 2 / (len(slowdowns) * sum(one**2 for one in slowdowns))


@dataclass(frozen=True, slots=True)
class Difference:
    """Differences of one contender to BASE over some cells, in percent; `later` as a share."""

    contender: str
    typical: Figures  # by the geometric mean of ratios
    most: Figures  # in the cell where it is greatest
    least: Figures
    later: float


def compare(results: Results, contenders: Sequence[str], cells: Sequence[Cell]) -> list[Difference]:
    """The differences over these cells; empty where there are none."""
    return [_difference(name, [results[cell] for cell in cells]) for name in contenders] if cells else []


def _difference(name: str, cells: Sequence[Mapping[str, Figures]]) -> Difference:
    figures = [figure for figure in cells[0][BASE] if figure != "later"]
    # What is nothing under BASE, such as a wait, has no ratio.
    ratios = {
        figure: [one[name][figure] / one[BASE][figure] for one in cells if one[BASE][figure] > 0 < one[name][figure]]
        for figure in figures
    }
    ratios = {figure: found for figure, found in ratios.items() if found}
    return Difference(
        name,
        {figure: 100 * (math.exp(fmean(map(math.log, found))) - 1) for figure, found in ratios.items()},
        {figure: 100 * (max(found) - 1) for figure, found in ratios.items()},
        {figure: 100 * (min(found) - 1) for figure, found in ratios.items()},
        max(one[name]["later"] for one in cells),
    )
