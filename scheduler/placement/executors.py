"""Where the next plan goes: pure functions that rank executors for it, best first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from scheduler.worker import Worker

Placement: TypeAlias = Callable[[Sequence[Worker]], Sequence[Worker]]


def idle_first(workers: Sequence[Worker]) -> Sequence[Worker]:
    """The executor with the fewest rows for its size first; those in the background only part ties."""
    return sorted(
        workers, key=lambda one: (len(one.others) / one.info.max_rows, one.rows / one.info.max_rows, one.info.index)
    )


def round_robin(workers: Sequence[Worker]) -> Sequence[Worker]:
    """In turn, whatever they have to do: the executor that was given the fewest plans first; ties by index."""
    return sorted(workers, key=lambda worker: (worker.plans, worker.info.index))


def max_min(workers: Sequence[Worker]) -> Sequence[Worker]:
    """The executor with the least predicted work first; ties by rows, then by index (SCLS, section 4.5).

    Batches that come longest first then go where the algorithm has them: the longest to the least loaded.
    """
    return sorted(workers, key=lambda worker: (worker.load, worker.rows, worker.info.index))


PLACEMENTS: Mapping[str, Placement] = MappingProxyType(
    {"idle-first": idle_first, "round-robin": round_robin, "max-min": max_min}
)
