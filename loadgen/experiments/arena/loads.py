"""The loads of the arena, and who plays each. Data only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from loadgen.experiments.grid.cells import REQUESTS, Cell
from loadgen.experiments.grid.loads import TASKS
from scheduler.strategy import STRATEGIES

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


def find_loads(traces: Sequence[str], requests: int = REQUESTS) -> Mapping[str, ArenaLoad]:
    """The loads of the arena, and for each trace one in which as many come as are served, and one of too many; with
    this many requests where they have REQUESTS."""
    further = {
        f"{trace}, {name}": replace(LOADS[name], cell=replace(LOADS[name].cell, load=trace))
        for trace in traces
        for name in ("as many come as are served", "too many come")
    }
    return {
        name: replace(one, cell=replace(one.cell, requests=round(one.cell.requests * requests / REQUESTS)))
        for name, one in {**LOADS, **further}.items()
    }
