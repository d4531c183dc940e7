"""When a waiting request takes the slot of a running row: pure rules over what executors hold and what waits.

The dispatcher pauses the rows; they wait again with what they have generated, and their K and V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import TypeAlias

from engine.messages import RowId
from scheduler.batching.batcher import Kit
from scheduler.request import Request
from scheduler.waiting.queue import Order
from scheduler.worker import Worker

Pauses: TypeAlias = Mapping[int, tuple[RowId, ...]]
"""Index of an executor -> the rows that it shall hand back."""

Preemption: TypeAlias = Callable[[Sequence[Worker], Iterable[Request], float], Pauses]
"""(executors, waiting requests, best first, now in seconds) -> the rows to pause. Asked once no executor takes more."""

EARLY = 0.8
"""C of TRAIL, "Don't Stop Me Now: Embedding Based Scheduling for LLMs" (2410.01035)."""


@dataclass(frozen=True, slots=True)
class ByOrder:
    """A request takes the slot of a running row that the order ranks behind it.

    A row has its slot for a slice at least, so that copies cost little beside what it does in between. Only the best
    request that waits is weighed, against one row at a time.
    """

    order: Order
    slice_length: int
    early: float = inf
    """Part of its predicted length up to which a row may lose its slot: its K and V take ever more memory, and it is
    ever nearer to its end."""

    def __call__(self, workers: Sequence[Worker], waiting: Iterable[Request], now: float) -> Pauses:
        first = next(iter(waiting), None)
        if first is None:
            return {}
        key = self.order.key(first, now)
        for worker in workers:
            rows = [] if worker.pausing else self._served(worker)
            last = max(rows, key=lambda row: self.order.key(row, now), default=None)
            if last is not None and self.order.key(last, now) > key:
                return {worker.info.index: (last.row_id,)}
        return {}

    def _served(self, worker: Worker) -> list[Request]:
        """Rows that have had their slot for a slice, and may still lose it."""
        return [
            row
            for row_id, row in worker.requests.items()
            if row.generated - worker.assignments[row_id].before[row] >= self.slice_length
            and row.generated < self.early * (row.predicted_length or row.sampling.max_tokens)
        ]


PREEMPTIONS: Mapping[str, Callable[[Kit], Preemption | None]] = MappingProxyType(
    {
        "none": lambda kit: None,
        "by-order": lambda kit: ByOrder(kit.new_keys(), kit.limits.options.slice_length),
        "by-order-early": lambda kit: ByOrder(kit.new_keys(), kit.limits.options.slice_length, EARLY),
    }
)
