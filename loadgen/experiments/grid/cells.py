"""The cells of the grid: every machine with every load, and what is predicted. Data only."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType

from loadgen.experiments.grid.loads import SHAPES, TASKS
from loadgen.experiments.grid.machines import GRID
from scheduler.strategy import STRATEGIES, Strategy

BASE = "baton-pd"  # first come, first served; what all are compared with
RATES = (0.7, 1.0, 1.3, 1.6)  # ρ: requests that come, by those that BASE serves in the same time
BURSTS = (1.0, 0.02)  # ρ and burstiness of a load that comes in bursts of some 50 requests
USUAL = "noisy:0.3"
MISLEADING = ("inverted", "tenfold", "noisy:2")
OTHERS = ("oracle", "noisy:0.7", *MISLEADING)
ALIKE = ("narrow", "equal")  # loads whose lengths are so similar that predictions do not matter
HARD = 1.3  # ρ at which other predictions are tried
REQUESTS = 600
OVERLOADS = (100, 3000)  # requests of short and of long overloads
OVERLOADED = (("A100, scarce slots", "small CPU"), ("log-normal", "bimodal", TASKS))


@dataclass(frozen=True, slots=True)
class Cell:
    """A load on a machine, which every contender plays."""

    machine: str
    load: str  # a name of the built-in loads, or a trace's path
    rho: float
    burstiness: float = 1.0
    prediction: str = USUAL
    seed: int = 0
    requests: int = REQUESTS

    @property
    def queued(self) -> bool:
        """Whether requests wait: as many come as are served, or they come in bursts."""
        return self.rho >= 1

    @property
    def alike(self) -> bool:
        """Whether its lengths hardly differ."""
        return self.load in ALIKE

    @property
    def described(self) -> str:
        """The cell in a few words."""
        return f"{self.machine}, {Path(self.load).stem}, ρ {self.rho:g}, predictions {self.prediction}"


def list_contenders() -> Mapping[str, Strategy]:
    """The rules that the grid compares: all join rows of similar length as slots free, and differ in who is next."""
    names = (BASE, "lengthwise", "fsp", "boost", "uniboost", "hrrn", "srpt", "gittins")
    found = {name: STRATEGIES[name] for name in names if name in STRATEGIES}
    return MappingProxyType(found | {"sjf": replace(STRATEGIES["srpt"], name="sjf", preemption="none")})


def all_cells(traces: Sequence[str], seeds: int, predicted: Sequence[str] = (), requests: int = REQUESTS) -> list[Cell]:
    """The whole grid in a random order, always the same, so that a part of it is a fair sample.

    `predicted` are files with predicted lengths of the traces in the same places, from their first requests on.
    """
    cells: list[Cell] = []
    for seed, machine, load in product(range(seeds), GRID, (*SHAPES, TASKS, *traces)):
        usual = Cell(machine, load, HARD, seed=seed, requests=requests)
        cells += [replace(usual, rho=rho) for rho in RATES]
        cells.append(replace(usual, rho=BURSTS[0], burstiness=BURSTS[1]))
        if not usual.alike:
            cells += [replace(usual, prediction=prediction) for prediction in OTHERS]
    for machine, load in product(*OVERLOADED):
        cells += [Cell(machine, load, HARD, requests=count) for count in OVERLOADS if count != requests]
    files = product(GRID, zip(traces, predicted, strict=False))
    cells += [
        Cell(machine, trace, HARD, prediction=f"file:{file}", requests=requests) for machine, (trace, file) in files
    ]
    random.Random(0).shuffle(cells)
    return cells


def group_cells(cells: Sequence[Cell], requests: int = REQUESTS) -> dict[str, list[Cell]]:
    """The cells by whether a rule can gain there: whether requests wait, how much lengths differ, what is predicted."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.alike:
            name = "lengths alike"
        elif not cell.queued:
            name = "no queue"
        elif cell.requests in OVERLOADS and cell.requests != requests:
            name = f"an overload of {cell.requests} requests"
        else:
            name = f"a queue, predictions {'of a file' if cell.prediction.startswith('file:') else cell.prediction}"
        groups.setdefault(name, []).append(cell)
    return {name: groups[name] for name in sorted(groups)}
