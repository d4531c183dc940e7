"""Where to: pure functions that rank executors for the next plan, best first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from scheduler.worker import Worker

Placement: TypeAlias = Callable[[Sequence[Worker]], Sequence[Worker]]


def idle_first(workers: Sequence[Worker]) -> Sequence[Worker]:
    """The executor with the fewest rows for its size first; ties by index."""
    return sorted(workers, key=lambda worker: (worker.rows / worker.info.max_rows, worker.info.index))


PLACEMENTS: Mapping[str, Placement] = MappingProxyType({"idle-first": idle_first})
