"""Batches arranged as requests arrive, so that little memory access is wasted (Magnus, sections III-C and III-E).

The executor that a batch will run on is not known when it is arranged: what it may grow to is what the smallest
executor holds, and the one that takes it is asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

import numpy as np

from engine.messages import Cause
from scheduler.batching.batch_queue import (
    BatchQueue,
    Column,
    Lengths,
    WaitingBatch,
    memory_tokens,
    useful_reads,
    wma_from_least,
)
from scheduler.batching.batcher import Batcher, Kit
from scheduler.plan import Plan
from scheduler.remaining_length import remaining_length
from scheduler.request import Request
from scheduler.serving_time.bilinear import FloatArray
from scheduler.worker import Worker


class WmaBatcher(Batcher):
    """A request joins the batch that wastes least with it in, or opens one; an idle executor takes the best batch."""

    def __init__(self, kit: Kit, *, fixed_size: bool = False) -> None:
        self._kit = kit
        self._limits = kit.limits
        self._fixed_size = fixed_size
        self._batches = BatchQueue()
        self._home: dict[Request, WaitingBatch] = {}
        self.waiting = self._home.keys()

    def add(self, request: Request, now: float) -> None:
        lengths = expected_lengths(request, self._limits.context_length)
        index = self._least_wasteful(request.priority, lengths)
        if index is None:
            self._open(WaitingBatch({request: lengths}))
        else:
            self._batches.join(index, request, lengths)
            self._home[request] = self._batches[index]

    def revise(self, request: Request, now: float) -> None:
        """Find a request the right batch again; one in a half of a batch that was split stays there."""
        batch = self._home.get(request)
        if batch is not None and batch.insertable:
            self._batches.leave(batch, request)
            self.add(request, now)  # which leaves it its place among those that wait

    def hand_back(self, requests: Sequence[Request], cause: Cause, now: float) -> None:
        """Take requests back; a batch that ran out of memory comes back as two closed halves (section III-C)."""
        if cause is not Cause.OVERFLOW:
            return super().hand_back(requests, cause, now)
        context = self._limits.context_length
        batch = WaitingBatch({one: expected_lengths(one, context) for one in requests}, insertable=False)
        for part in batch.halves() if len(batch) > 1 else (batch,):
            self._open(part)

    def discard(self, request: Request) -> bool:
        batch = self._home.pop(request, None)
        if batch is None:
            return False
        self._batches.leave(batch, request)
        return True

    def take(self, worker: Worker, now: float) -> Plan | None:
        self._limits = self._limits.within(worker.capacity_tokens, worker.info.context_length, worker.info.max_rows)
        if worker.busy or not self._batches:
            return None
        batch = self._cut(self._batches.remove(self._first(now)), worker)
        for request in batch.rows:
            del self._home[request]
        return self._plan(batch)

    def _least_wasteful(self, priority: int, lengths: Lengths) -> int | None:
        """Index of the batch that wastes least once such a request is in it, if it may join any (algorithm 1)."""
        numbers = self._batches.numbers
        rows = numbers[Column.ROWS] + 1
        inputs = np.maximum(numbers[Column.INPUT], lengths.input)
        generations = np.maximum(numbers[Column.GENERATION], lengths.generation)
        least = np.minimum(numbers[Column.LEAST_USEFUL], useful_reads(*lengths))
        waste = wma_from_least(inputs, generations, least)
        open_to_it = (numbers[Column.INSERTABLE] > 0) & (numbers[Column.PRIORITY] == priority)
        fits = (rows <= self._most_rows) & (memory_tokens(rows, inputs, generations) <= self._most_tokens)
        waste[~(open_to_it & fits & (waste < self._limits.options.wma_threshold))] = inf
        index = int(waste.argmin()) if waste.size else 0
        return index if waste.size and waste[index] < inf else None

    @property
    def _most_tokens(self) -> float:
        return inf if self._limits.capacity_tokens is None else self._limits.capacity_tokens

    @property
    def _most_rows(self) -> float:
        """Rows that a batch may have; with a fixed size at most β, so that none runs out of memory (equation 1)."""
        limits = self._limits
        bounds = [bound for bound in (limits.slots, limits.options.max_batch_size) if bound is not None]
        if self._fixed_size and limits.capacity_tokens is not None and limits.context_length is not None:
            bounds.append(limits.capacity_tokens // limits.context_length)
        return min(bounds, default=inf)

    def _first(self, now: float) -> int:
        """Index of the batch to serve next: of the best priority there is, the first by the batch order."""
        numbers = self._batches.numbers
        scores = self._kit.batch_order(now - numbers[Column.OLDEST], self._all_seconds)
        priorities = numbers[Column.PRIORITY]
        return int(np.where(priorities == priorities.min(), scores, -inf).argmax())

    def _cut(self, batch: WaitingBatch, worker: Worker) -> WaitingBatch:
        """The part of a batch that this executor can hold: halved, as if out of memory, until it fits."""
        while len(batch) > 1 and not self._fits(batch, worker):
            batch, rest = batch.halves()
            self._open(rest)
        return batch

    def _fits(self, batch: WaitingBatch, worker: Worker) -> bool:
        slots = min(worker.info.max_rows, self._limits.options.max_batch_size or worker.info.max_rows)
        return len(batch) <= slots and self._kit.memory(worker, len(batch), batch.lengths.columns)

    def _open(self, batch: WaitingBatch) -> None:
        self._batches.open(batch)
        for request in batch.rows:
            self._home[request] = batch

    def _all_seconds(self) -> FloatArray:
        """Estimated serving times (batches,) of all batches, in seconds."""
        assert self._kit.estimator is not None, "a strategy that orders batches by it names an estimator"
        return self._kit.estimator.estimate_all(self._batches.numbers[: Column.GENERATION + 1].T)

    def _plan(self, batch: WaitingBatch) -> Plan:
        estimator, lengths = self._kit.estimator, batch.lengths
        seconds = 0.0 if estimator is None else estimator.estimate(len(batch), *lengths)
        return self._kit.plan(tuple(batch.rows), seconds, lengths.generation)


def expected_lengths(request: Request, context_length: int | None) -> Lengths:
    """L(p) and G'(p) of what is still to do, in whole tokens, for an executor with such a context, where known.

    A request that was handed back has K and V for what it generated, which therefore counts as input.
    """
    left = ceil(remaining_length(request))
    if context_length is not None:
        left = min(left, context_length - request.tokens)
    return Lengths(request.tokens, max(1, left))
