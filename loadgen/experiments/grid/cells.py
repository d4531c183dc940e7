"""The cells of the grid, every machine with every load and what is predicted; and the loads of the arena. Data only."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType

from engine.simulated.machine import Machine
from loadgen.experiments.grid.loads import SHAPES, TASKS
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.presets import PRESETS
from scheduler.strategy import STRATEGIES, Strategy

FAST_GPU = Bilinear(p1=3.2e-5, p2=0.0, p3=0.0, p4=0.006, d1=4.9e-8, d2=0.0, d3=0.0, d4=0.006)
"""A model of 8 billion parameters on an H100 by arithmetic: 16 GB of weights and 131 kB of K and V a token at 2.7e12
bytes a second, 1.6e10 operations a token at 5e14 a second."""

H100 = Machine(FAST_GPU, 400_000, 64, 2048)
GRID = ("A100, scarce memory", "A100, scarce slots", "small CPU", "H100")

MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        "A100, scarce memory": replace(PRESETS["a100-llama2-13b-hf"], workers=1, capacity_tokens=32_768),
        "A100, scarce slots": replace(PRESETS["a100-llama2-13b-ds"], workers=1, max_num_seqs=12),
        "small CPU": PRESETS["cpu-smollm2-135m"],
        "H100": H100,
        "H100, 256 slots": replace(H100, max_num_seqs=256),
    }
)
"""All machines; the last, with slots for nearly all that comes, is the arena's alone."""


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


def all_cells(
    traces: Sequence[str], seeds: Sequence[int], predicted: Sequence[str] = (), requests: int = REQUESTS
) -> list[Cell]:
    """The whole grid in a random order, always the same, so that a part of it is a fair sample.

    `predicted` are files with predicted lengths of the traces in the same places, from their first requests on.
    """
    cells: list[Cell] = []
    for seed, machine, load in product(seeds, GRID, (*SHAPES, TASKS, *traces)):
        usual = Cell(machine, load, HARD, seed=seed, requests=requests)
        cells += [replace(usual, rho=rho) for rho in RATES]
        cells.append(replace(usual, rho=BURSTS[0], burstiness=BURSTS[1]))
        if not usual.alike:
            cells += [replace(usual, prediction=prediction) for prediction in OTHERS]
    for machine, load in product(*OVERLOADED):
        cells += [Cell(machine, load, HARD, seed=seeds[0], requests=count) for count in OVERLOADS if count != requests]
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


ALL = tuple(name for name, one in STRATEGIES.items() if one.quantization is None)
"""All rows of the table; weights of another type are no matter of scheduling."""

_JOINING = STRATEGIES["baton-pd"]
ORDERS = tuple(
    name for name, one in STRATEGIES.items() if (one.batching, one.refill) == (_JOINING.batching, _JOINING.refill)
    and one.memory in (_JOINING.memory, "peak")
)  # fmt: skip
"""The rows that differ from `baton-pd` in nothing but who is next."""


WIDE = 5 * REQUESTS // 2  # requests of a run with 256 slots


@dataclass(frozen=True, slots=True)
class ArenaLoad:
    """A load, and the rows that play it."""

    cell: Cell
    names: Sequence[str] = ALL


LOADS: Mapping[str, ArenaLoad] = MappingProxyType(
    {
        "few come": ArenaLoad(Cell("A100, scarce slots", TASKS, 0.3)),
        "as many come as are served": ArenaLoad(Cell("A100, scarce slots", TASKS, 1.0)),
        "too many come": ArenaLoad(Cell("A100, scarce slots", TASKS, 1.6)),
        "scarce memory, heavy tails": ArenaLoad(Cell("A100, scarce memory", "log-normal", 1.3)),
        "a small CPU": ArenaLoad(Cell("small CPU", "bimodal", 1.3)),
        "predictions that mislead": ArenaLoad(Cell("small CPU", "bimodal", 1.3, prediction="inverted"), ORDERS),
        "predictions ten times off": ArenaLoad(Cell("small CPU", "bimodal", 1.3, prediction="tenfold"), ORDERS),
        "256 slots": ArenaLoad(Cell("H100, 256 slots", "log-normal", 0.9, requests=WIDE), ORDERS),
        "256 slots, too many come": ArenaLoad(Cell("H100, 256 slots", "log-normal", 1.3, requests=WIDE), ORDERS),
    }
)
"""Loads by name. ρ is requests that come, by those that `baton-pd` serves."""


def find_loads(traces: Sequence[str], requests: int = REQUESTS, seed: int = 0) -> Mapping[str, ArenaLoad]:
    """The loads of the arena, and for each trace one in which as many come as are served, and one of too many; with
    this many requests where they have REQUESTS."""
    further = {
        f"{trace}, {name}": replace(LOADS[name], cell=replace(LOADS[name].cell, load=trace))
        for trace in traces
        for name in ("as many come as are served", "too many come")
    }
    return {
        name: replace(one, cell=replace(one.cell, seed=seed, requests=round(one.cell.requests * requests / REQUESTS)))
        for name, one in {**LOADS, **further}.items()
    }
