"""The cells of the grid: every machine with every load, and what is predicted. Data only."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from loadgen.experiments.grid.loads import SHAPES, TASKS
from loadgen.experiments.grid.machines import MACHINES

RATES = (0.7, 1.0, 1.3, 1.6)
"""ρ: requests that come, by those that `baton-pd` serves in the same time."""

BURSTS = (1.0, 0.02)
"""ρ and burstiness of a load that comes in bursts of some 50 requests."""

USUAL = "noisy:0.3"
OTHERS = ("oracle", "noisy:0.7", "inverted", "tenfold")
ALIKE = ("narrow", "equal")
"""Loads whose lengths are so similar that predictions do not matter."""

HARD = 1.3
"""ρ at which other predictions are tried."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of every contender."""

    machine: str
    load: str
    """A name of the built-in loads, or a trace's path."""
    rho: float
    burstiness: float
    prediction: str
    seed: int


def all_cells(traces: Sequence[str], seeds: int, predicted: Sequence[str] = ()) -> list[Cell]:
    """The whole grid in a random order, always the same, so that a part of it is a fair sample.

    `predicted` are files with predicted lengths of the traces in the same places, from their first requests on.
    """
    cells: list[Cell] = []
    for seed, machine, load in product(range(seeds), MACHINES, (*SHAPES, TASKS, *traces)):
        cells += [Cell(machine, load, rho, 1.0, USUAL, seed) for rho in RATES]
        cells.append(Cell(machine, load, *BURSTS, USUAL, seed))
        if load not in ALIKE:
            cells += [Cell(machine, load, HARD, 1.0, prediction, seed) for prediction in OTHERS]
    files = product(MACHINES, zip(traces, predicted, strict=False))
    cells += [Cell(machine, trace, HARD, 1.0, f"file:{file}", 0) for machine, (trace, file) in files]
    random.Random(0).shuffle(cells)
    return cells
