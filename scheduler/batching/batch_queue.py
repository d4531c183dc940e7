"""Batches that wait, their numbers side by side in arrays, so that a decision looks at all of them at once, and which
batch is served first: highest response ratio next (Magnus, section III-E), or the oldest.

Batches of better priority go before all others; the rules rank those of one priority only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from scheduler.batching.wma import Lengths, batch_lengths, useful_reads
from scheduler.request import Request
from scheduler.serving_time.bilinear import FloatArray


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
