"""When running rows make way: pure rules over what executors hold and what waits.

The dispatcher pauses the rows; they wait again with what they have generated, and their K and V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import inf
from types import MappingProxyType
from typing import TypeAlias

from engine.messages import RowId
from scheduler.batching.memory import Memory
from scheduler.plan import Worker
from scheduler.remaining_length import remaining_length
from scheduler.request import Request
from scheduler.serving_time.machine import MachineModel
from scheduler.waiting.queue import Keys

Preemption: TypeAlias = Callable[[Worker, Iterable[Request], float], Sequence[RowId]]
"""(executor, waiting requests, best first, now in seconds) -> its rows that make way. Asked once no executor takes
more."""

EARLY = 0.8
"""C of TRAIL, "Don't Stop Me Now: Embedding Based Scheduling for LLMs" (2410.01035)."""


@dataclass(frozen=True, slots=True)
class ByPriority:
    """Rows of worse priority make way for requests that find no room beside them, the worst first (Baton's preemption);
    none does for a request that would not fit all the same."""

    memory: Memory

    def __call__(self, worker: Worker, waiting: Iterable[Request], now: float) -> Sequence[RowId]:
        """Those that make way for as many of these requests as may have their place."""
        rows = sorted(worker.requests.values(), key=lambda row: row.priority)
        staying = found = len(rows)
        longest = 0
        for count, request in enumerate(waiting, start=1):
            longest = max(longest, self.memory.length(request))
            while not (fits := self._fits(worker, rows[:staying], count, longest)):
                if not staying or rows[staying - 1].priority <= request.priority:
                    break
                staying -= 1
            if not fits:
                break
            found = staying
        return tuple(row.row_id for row in rows[found:])

    def _fits(self, worker: Worker, staying: Sequence[Request], count: int, longest: int) -> bool:
        left = replace(worker, requests={row.row_id: row for row in staying})
        return left.rows + count <= worker.info.max_rows and self.memory(left, count, longest)


@dataclass(frozen=True, slots=True)
class ByOrder:
    """A request takes the slot of a running row that the order ranks behind it.

    A row has its slot for a slice at least, so that copies cost little beside what it does in between. Only the best
    request that waits is weighed, against one row at a time.
    """

    key: Keys
    slice_length: int
    early: float = inf
    """Part of its predicted length up to which a row may lose its slot: its K and V take ever more memory, and it is
    ever nearer to its end."""

    def __call__(self, worker: Worker, waiting: Iterable[Request], now: float) -> Sequence[RowId]:
        first, rows = next(iter(waiting), None), [] if worker.pausing else self._served(worker)
        last = max(rows, key=lambda row: self.key(row, now), default=None)
        if first is None or last is None or self.key(last, now) <= self.key(first, now):
            return ()
        return (last.row_id,)

    def _served(self, worker: Worker) -> list[Request]:
        """Rows that have had their slot for a slice, and may still lose it."""
        return [
            row
            for row_id, row in worker.requests.items()
            if row.generated - worker.assignments[row_id].before[row] >= self.slice_length
            and row.generated < self.early * (row.predicted_length or row.sampling.max_tokens)
        ]


PREEMPTIONS: Mapping[str, float | None] = MappingProxyType({"none": None, "by-order": inf, "by-order-early": EARLY})
"""Whether running rows make way by the order, and up to which part of their predicted length."""


@dataclass(frozen=True, slots=True)
class Background:
    """As many background rows run beside others as lengthen a step of these by a given share at most.

    Background requests, the lines of batches, have an executor to themselves while nothing else is there. Beside others
    each of their rows makes a step dearer: hardly on a GPU, whose steps read the weights whatever runs, but by a
    fiftieth and more on a CPU. A row is charged for its part of an iteration and, spread over its answer, for the
    reading of its prompt. What the others' step takes depends on no background row, and what a background row costs on
    no other one: so none is let in that would have to leave at once.
    """

    share: float
    """Part by which a step of other rows may become longer."""
    machine: MachineModel

    def within(self, worker: Worker, ranked: Iterable[Request]) -> Iterator[Request]:
        """The first of these background requests, as many as an executor may have beside what it has."""
        held = _background_rows(worker)
        return islice(self._fitting(worker, chain(held, ranked)), len(held), None)

    def __call__(self, worker: Worker, waiting: Iterable[Request], now: float) -> Sequence[RowId]:
        """Those that came last make way."""
        held = _background_rows(worker)
        excess = held[len(list(self._fitting(worker, held))) :]
        return tuple(row.row_id for row in excess if row.row_id not in worker.pausing)

    def _fitting(self, worker: Worker, rows: Iterable[Request]) -> Iterator[Request]:
        """The first of these background rows, as many as may run together beside the executor's other rows: all where
        there are none, and none while the machine's prices are unknown."""
        others, model = worker.others, self.machine.model
        if not others:
            yield from rows
        elif model is not None:
            columns = max(row.tokens for row in others)
            seconds = self.share * model.iteration(len(others), columns)
            for row in rows:
                answer = row.generated + remaining_length(row)
                seconds -= model.d1 * columns + model.d2 + model.prefill(1, row.input_length) / answer
                if seconds < 0:
                    return
                yield row


def _background_rows(worker: Worker) -> list[Request]:
    """The background rows of an executor, in the order in which it got them."""
    return [row for row in worker.requests.values() if row.in_background]
