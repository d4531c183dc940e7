"""The table of strategies: each a named combination of the scheduler's parts, one choice a column (design, 4).

A strategy is data. To add one, add a row here, and a pure function where a column needs a new choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from scheduler.batching import BATCHERS, Batcher, Limits
from scheduler.memory import MEMORIES
from scheduler.order import ORDERS
from scheduler.placement import PLACEMENTS, Placement


@dataclass(frozen=True, slots=True)
class Strategy:
    """One row of the table; each field names an entry of its part's own table."""

    name: str
    order: str
    batching: str
    placement: str
    memory: str


@dataclass(frozen=True, slots=True)
class Parts:
    """A strategy's parts, ready to work."""

    batcher: Batcher
    placement: Placement


_TABLE = (Strategy("baton-pd", order="fcfs", batching="join", placement="idle-first", memory="scale"),)

STRATEGIES: Mapping[str, Strategy] = MappingProxyType({strategy.name: strategy for strategy in _TABLE})


def assemble(strategy: Strategy, limits: Limits) -> Parts:
    """Look each part up and put them together; raises KeyError for a choice that no part's table has."""
    batcher = BATCHERS[strategy.batching](ORDERS[strategy.order], MEMORIES[strategy.memory], limits)
    return Parts(batcher, PLACEMENTS[strategy.placement])
