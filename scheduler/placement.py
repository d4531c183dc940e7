"""Where the next plan goes: pure functions that rank executors for it, best first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from scheduler.remaining_length import remaining_length
from scheduler.worker import Worker

Placement: TypeAlias = Callable[[Sequence[Worker]], Sequence[Worker]]


def idle_first(workers: Sequence[Worker]) -> Sequence[Worker]:
    """The executor with the fewest rows for its size first; ties by index."""
    return sorted(workers, key=lambda worker: (worker.rows / worker.info.max_rows, worker.info.index))


def round_robin(workers: Sequence[Worker]) -> Sequence[Worker]:
    """In turn, whatever they have to do: the executor that was given the fewest plans first; ties by index."""
    return sorted(workers, key=lambda worker: (worker.plans, worker.info.index))


def max_min(workers: Sequence[Worker]) -> Sequence[Worker]:
    """The executor with the least predicted work first; ties by rows, then by index (SCLS, section 4.5).

    Batches that come longest first then go where the algorithm has them: the longest to the least loaded.
    """
    return sorted(workers, key=lambda worker: (worker.load, worker.rows, worker.info.index))


def idle_least(workers: Sequence[Worker]) -> Sequence[Worker]:
    """As `idle_first`, but of equally full executors the one whose rows have least left to do; then by index.

    Max-min where executors are equally fast for one more row: how fast a joining row will be depends on how many it
    runs beside, so many short rows are a worse place than few long ones though these are more work.
    """
    shares = {worker.info.index: worker.rows / worker.info.max_rows for worker in workers}
    tied = Counter(shares.values())

    def key(worker: Worker) -> tuple[float, float, int]:
        share = shares[worker.info.index]
        return (share, _remaining_tokens(worker) if tied[share] > 1 else 0.0, worker.info.index)

    return sorted(workers, key=key)


def _remaining_tokens(worker: Worker) -> float:
    """Tokens that an executor's rows are expected to make from now on."""
    return sum(remaining_length(request) for request in worker.requests.values())


PLACEMENTS: Mapping[str, Placement] = MappingProxyType(
    {"idle-first": idle_first, "round-robin": round_robin, "max-min": max_min, "idle-least": idle_least}
)
