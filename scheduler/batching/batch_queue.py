"""Batches that wait, their numbers side by side in arrays, so that a decision looks at all of them at once: what memory
access they waste, and which is served first, by response ratio (Magnus, section III-E) or by age.

Batches of better priority go before all others; the rules rank those of one priority only.

Wasted memory accesses: how much of what a static batch reads serves no answer (Magnus, section III-C).

A row that runs in a batch of input length L(B) and generation length G(B) reads L(B) + g cells of K and V in the
iteration after its g-th token. Reads of its padding are wasted, and all reads after its end token are. Lengths are
whole tokens; functions take numbers, or arrays of them as floats. It knows no request and no queue.

The waste of a row in a batch is

    WMA_gen(p)  = G(p)·(L(B) - L(p))                     equation 2: reads of padding while it generates its answer
    WMA_wait(p) = Σ_{g=G(p)..G(B)} (g + L(B))            equation 3: reads while it waits for the others to end
    WMA(B)      = max_p (WMA_gen(p) + WMA_wait(p))       equation 4

As in the paper the sum of equation 3 has both its ends, so the row that ends last is charged for one iteration too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np

from scheduler.request import Request
from scheduler.serving_time.bilinear import FloatArray

if TYPE_CHECKING:
    from scheduler.serving_time.bilinear import FloatArray


Count = TypeVar("Count", int, "FloatArray")


class Lengths(NamedTuple):
    """A request's L(p) and G(p), or a batch's L(B) and G(B), in tokens."""

    input: int
    generation: int

    @property
    def columns(self) -> int:
        """Tokens of K and V at the end."""
        return self.input + self.generation


def batch_lengths(rows: Iterable[Lengths]) -> Lengths:
    """L(B) and G(B), the longest of each."""
    inputs, generations = zip(*rows, strict=True)
    return Lengths(max(inputs), max(generations))


def useful_reads(input_length: Count, generation_length: Count) -> Count:
    """Σ_{g=0..G(p)-1} (L(p) + g): reads of a row's own tokens up to its end token, the same in every batch."""
    return generation_length * input_length + generation_length * (generation_length - 1) // 2


def all_reads(input_length: Count, generation_length: Count) -> Count:
    """Σ_{g=0..G(B)} (L(B) + g): reads of any one row of a batch, with equation 3's one iteration more."""
    return (generation_length + 1) * input_length + generation_length * (generation_length + 1) // 2


def wma_from_least(input_length: Count, generation_length: Count, least_useful_reads: Count) -> Count:
    """WMA(B) without a look at its rows: from L(B), G(B) and the least useful reads of any row.

    All rows of a batch read the same number of cells, and what is not useful is wasted: the terms G(p)·L(B) of
    equations 2 and 3 cancel, so WMA_gen(p) + WMA_wait(p) = all_reads(B) - useful_reads(p). The most wasteful row is
    the one with the fewest useful reads, whichever batch it is in, so a batch need not remember the others.
    """
    return all_reads(input_length, generation_length) - least_useful_reads


def memory_tokens(rows: Count, input_length: Count, generation_length: Count) -> Count:
    """MEM(B) / Δ = N·(L(B) + G(B)): tokens of K and V that a batch holds at its end (equation 5)."""
    return rows * (input_length + generation_length)


class WaitingBatch:
    """Requests of one priority that shall run together; others may join them while it is `insertable`."""

    __slots__ = ("insertable", "rows")

    def __init__(self, rows: dict[Request, Lengths], *, insertable: bool = True) -> None:
        self.rows = rows
        """Each with the lengths that it had when it came, since these decided that it came here."""
        self.insertable = insertable

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Lengths:
        """L(B) and G'(B)."""
        return batch_lengths(self.rows.values())

    def halves(self) -> tuple[WaitingBatch, WaitingBatch]:
        """Two even batches that no request joins (Magnus, section III-C); there must be two requests at least."""
        pairs = list(self.rows.items())
        middle = (len(pairs) + 1) // 2
        first, second = dict(pairs[:middle]), dict(pairs[middle:])
        return WaitingBatch(first, insertable=False), WaitingBatch(second, insertable=False)


class Column(IntEnum):
    """Numbers of a batch, in whole tokens and in seconds."""

    ROWS = 0
    INPUT = 1
    GENERATION = 2
    LEAST_USEFUL = 3
    """The least useful reads of any of its rows."""
    OLDEST = 4
    """When its oldest request arrived."""
    PRIORITY = 5
    INSERTABLE = 6


class BatchQueue:
    """Batches in the order in which they were opened; none is ever empty."""

    def __init__(self) -> None:
        self._batches: list[WaitingBatch] = []
        self._numbers: FloatArray = np.zeros((len(Column), 16))  # floats hold whole numbers exactly up to 2^53
        self._stale: set[WaitingBatch] = set()  # lost a request since their numbers were written

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[WaitingBatch]:
        return iter(self._batches)

    def __getitem__(self, index: int) -> WaitingBatch:
        return self._batches[index]

    @property
    def numbers(self) -> FloatArray:
        """(columns, batches), as they are now; a view that lives until the queue changes."""
        for batch in self._stale:
            self._write(self._batches.index(batch), batch)
        self._stale.clear()
        return self._numbers[:, : len(self._batches)]

    def open(self, batch: WaitingBatch) -> None:
        """Put a batch at the end."""
        if len(self._batches) == self._numbers.shape[1]:
            self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)], axis=1)
        self._batches.append(batch)
        self._write(len(self._batches) - 1, batch)

    def join(self, index: int, request: Request, lengths: Lengths) -> None:
        """Put a request into a batch."""
        self._batches[index].rows[request] = lengths
        numbers = self._numbers[:, index]
        numbers[Column.ROWS] += 1
        numbers[Column.INPUT] = max(numbers[Column.INPUT], lengths.input)
        numbers[Column.GENERATION] = max(numbers[Column.GENERATION], lengths.generation)
        numbers[Column.LEAST_USEFUL] = min(numbers[Column.LEAST_USEFUL], useful_reads(*lengths))
        numbers[Column.OLDEST] = min(numbers[Column.OLDEST], request.times.arrival)

    def leave(self, batch: WaitingBatch, request: Request) -> None:
        """Take a request out of its batch, and the batch out when it was the last."""
        del batch.rows[request]
        if batch.rows:
            self._stale.add(batch)  # written again only when it is read, since many may leave at once
        else:
            self.remove(self._batches.index(batch))

    def remove(self, index: int) -> WaitingBatch:
        """Take a batch out."""
        batch = self._batches.pop(index)
        self._stale.discard(batch)
        left = len(self._batches)
        self._numbers[:, index:left] = self._numbers[:, index + 1 : left + 1]
        return batch

    def _write(self, index: int, batch: WaitingBatch) -> None:
        self._numbers[:, index] = (
            len(batch),
            *batch.lengths,
            min(useful_reads(*lengths) for lengths in batch.rows.values()),
            min(request.times.arrival for request in batch.rows),
            next(iter(batch.rows)).priority,
            batch.insertable,
        )


BatchOrder: TypeAlias = Callable[[FloatArray, Callable[[], FloatArray]], FloatArray]
"""(seconds that the oldest request of each batch has waited, a way to estimate each batch's serving time) -> a score of
each batch, the highest first."""

LEAST_SECONDS = 1e-9
"""Seconds that an estimate counts for at least, so that none divides by zero."""


def oldest_first(waited: FloatArray, seconds: Callable[[], FloatArray]) -> FloatArray:
    """First come, first served: the batch with the oldest request. Asks for no estimate."""
    return waited


def hrrn(waited: FloatArray, seconds: Callable[[], FloatArray]) -> FloatArray:
    """Highest response ratio next: T_queue(B) / T_serve(B), where T_queue is its oldest request's waiting time."""
    ratios: FloatArray = waited / np.maximum(seconds(), LEAST_SECONDS)
    return ratios


BATCH_ORDERS: Mapping[str, BatchOrder] = MappingProxyType({"fcfs": oldest_first, "hrrn": hrrn})
