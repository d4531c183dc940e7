"""When a waiting request takes the slot of a running row: pure rules over what executors hold and what waits.

The dispatcher pauses the rows; they wait again with what they have generated, and their K and V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from engine.messages import RowId
from scheduler.batching.batcher import Kit
from scheduler.batching.joining import worth_joining
from scheduler.remaining_length import remaining_length
from scheduler.request import Request
from scheduler.waiting.prices import Prices
from scheduler.worker import Worker

Pauses: TypeAlias = Mapping[int, tuple[RowId, ...]]
"""Index of an executor -> the rows that it shall hand back."""

Preemption: TypeAlias = Callable[[Sequence[Worker], Iterable[Request], float], Pauses]
"""(executors, waiting requests, best first, now in seconds) -> the rows to pause. Asked when no executor takes more."""


@dataclass(frozen=True, slots=True)
class Swap:
    """A request takes a running row's slot where it would wait for one much longer than it needs one.

    Let f be the iterations until a row of the executor is expected to end, so that a slot is free anyway, g those that
    the request needs, and c those that could be done in the time that it takes to copy a row's K and V out and in, or
    to read it again where they are not kept. With the row's slot the request ends f earlier, and the row g + c later.
    So they swap when f > factor·(g + c); the row is the one that has most left to do, of the class of the request. Only
    the best request that waits is weighed, one row at a time, and only if it is worth a place beside the others
    (joining.py), promoted or not: one whose padding slows them all waits for a slot. `factor` is the hysteresis.

    None thrashes, and none starves: a row has its slot for a slice at least, and makes way once in its life, so that it
    waits twice at most; and it cannot take the slot back from the request, which ends before anything it would have to
    wait for.
    """

    prices: Prices
    slice_length: int
    factor: float

    def __call__(self, workers: Sequence[Worker], waiting: Iterable[Request], now: float) -> Pauses:
        first = next(iter(waiting), None)
        if first is None:
            return {}
        for worker in workers:
            row = None if worker.pausing else self._row_for(first, worker)
            if row is not None:
                return {worker.info.index: (row.row_id,)}
        return {}

    def _row_for(self, request: Request, worker: Worker) -> Request | None:
        """The row of this executor whose slot the request shall have, if any."""
        needed = self.factor * remaining_length(request)
        if any(remaining_length(row) <= needed for row in worker.requests.values()):
            return None  # a slot is free soon enough whatever copying costs
        rows = [row for row in self._served(worker) if row.priority == request.priority and row.runs == 1]
        if not rows:
            return None
        row = max(rows, key=lambda row: (remaining_length(row), row.row_id))
        until_free = min(remaining_length(row) for row in worker.requests.values())
        if until_free <= needed + self.factor * self.prices.swap_iterations(row):
            return None
        seen = worker.as_seen_by(request.priority)
        others = {row_id: held for row_id, held in seen.requests.items() if held is not row}
        return row if any(worth_joining([request], replace(seen, requests=others), self.prices.model)) else None

    def _served(self, worker: Worker) -> list[Request]:
        """Rows that have had their slot for a slice."""
        return [
            row
            for row_id, row in worker.requests.items()
            if row.generated - worker.assignments[row_id].before[row] >= self.slice_length
        ]


def _none(kit: Kit) -> None:
    return None


def _swap(kit: Kit) -> Preemption:
    return Swap(kit.prices(), kit.limits.slice_length, kit.limits.preemption_factor)


PREEMPTIONS: Mapping[str, Callable[[Kit], Preemption | None]] = MappingProxyType({"none": _none, "swap": _swap})
