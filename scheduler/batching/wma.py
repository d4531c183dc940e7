"""Batches with least wasted memory accesses (Magnus, III-C and III-E). A row reads L(B) + g cells after its g-th
token:

    WMA_gen(p)  = G(p)·(L(B) - L(p))                     equation 2: padding read while it generates
    WMA_wait(p) = Σ_{g=G(p)..G(B)} (g + L(B))            equation 3: reads while it waits for the others
    WMA(B)      = max_p (WMA_gen(p) + WMA_wait(p))       equation 4

As in the paper, equation 3 includes both ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from engine.messages import Cause
from scheduler.batching.batcher import Batcher, BatcherParts
from scheduler.plan import Plan
from scheduler.remaining_length import remaining_length
from scheduler.request import Request
from scheduler.serving_time.bilinear import LEAST_SECONDS, FloatArray
from scheduler.waiting.by_length import Arrived
from scheduler.waiting.queue import RankedQueue
from scheduler.worker import Worker


class BatchLengths(NamedTuple):
    """In tokens."""

    input: int
    generation: int

    @property
    def columns(self) -> int:
        return self.input + self.generation


def batch_lengths(rows: Iterable[BatchLengths]) -> BatchLengths:
    inputs, generations = zip(*rows, strict=True)
    return BatchLengths(max(inputs), max(generations))


def useful_reads(input_length: int, generation_length: int) -> int:
    """Σ_{g=0..G(p)-1} (L(p) + g)."""
    return generation_length * input_length + generation_length * (generation_length - 1) // 2


def all_reads(input_length: int, generation_length: int) -> int:
    """Σ_{g=0..G(B)} (L(B) + g)."""
    return (generation_length + 1) * input_length + generation_length * (generation_length + 1) // 2


def wma_from_least(input_length: int, generation_length: int, least_useful_reads: int) -> int:
    """WMA(B), as WMA_gen(p) + WMA_wait(p) = all_reads(B) - useful_reads(p)."""
    return all_reads(input_length, generation_length) - least_useful_reads


def memory_tokens(rows: int, input_length: int, generation_length: int) -> int:
    """MEM(B) / Δ = N·(L(B) + G(B)) (equation 5)."""
    return rows * (input_length + generation_length)


def hrrn(waited: FloatArray, seconds: FloatArray) -> FloatArray:
    return np.asarray(waited / np.maximum(seconds, LEAST_SECONDS))


class WaitingBatch:
    """One priority, open while `insertable`, never empty."""

    def __init__(self, rows: dict[Request, BatchLengths], *, insertable: bool = True) -> None:
        self.rows = rows  # with lengths on arrival
        self.insertable = insertable
        self.priority = next(iter(rows)).priority
        self.count()

    def __len__(self) -> int:
        return len(self.rows)

    def count(self) -> None:
        self.lengths = batch_lengths(self.rows.values())  # L(B) and G'(B)
        self.least_useful = min(useful_reads(*lengths) for lengths in self.rows.values())
        self.oldest = min(request.times.arrival for request in self.rows)

    def halves(self) -> tuple[WaitingBatch, WaitingBatch]:
        """Closed (Magnus, III-C)."""
        pairs = list(self.rows.items())
        middle = (len(pairs) + 1) // 2
        first, second = dict(pairs[:middle]), dict(pairs[middle:])
        return WaitingBatch(first, insertable=False), WaitingBatch(second, insertable=False)


class WmaBatcher(Batcher):
    def __init__(self, kit: BatcherParts, *, fixed_size: bool = False) -> None:
        super().__init__(kit, RankedQueue(Arrived()))
        self._limits = kit.limits
        self._fixed_size = fixed_size
        self._batches: list[WaitingBatch] = []  # by age
        self._home: dict[Request, WaitingBatch] = {}

    def add(self, request: Request, now: float) -> None:
        super().add(request, now)
        lengths = expected_lengths(request, self._limits.context_length)
        batch = self._least_wasteful(request.priority, lengths)
        if batch is None:
            self._open(WaitingBatch({request: lengths}))
        else:
            batch.rows[request] = lengths
            batch.count()
            self._home[request] = batch

    def revise(self, request: Request, now: float) -> None:
        batch = self._home.get(request)
        if batch is not None and batch.insertable:
            self.discard(request)
            self.add(request, now)

    def hand_back(self, requests: Sequence[Request], cause: Cause, now: float) -> None:
        """After out of memory, as two closed halves (III-C)."""
        if cause is not Cause.OVERFLOW:
            return super().hand_back(requests, cause, now)
        context = self._limits.context_length
        batch = WaitingBatch({one: expected_lengths(one, context) for one in requests}, insertable=False)
        for part in batch.halves() if len(batch) > 1 else (batch,):
            self._open(part)
        for request in requests:
            self.waiting.add(request)

    def discard(self, request: Request) -> bool:
        if not super().discard(request):
            return False
        batch = self._home.pop(request)
        del batch.rows[request]
        if batch.rows:
            batch.count()
        else:
            self._batches.remove(batch)
        return True

    def take(self, worker: Worker, now: float) -> Plan | None:
        self._limits = self._limits.within(worker.capacity_tokens, worker.info.context_length, worker.info.max_rows)
        if worker.requests or not self._batches:
            return None
        best, estimator = min(batch.priority for batch in self._batches), self._kit.estimator
        batches = [batch for batch in self._batches if batch.priority == best]
        waited = np.array([now - batch.oldest for batch in batches])
        if estimator is not None:
            features = np.array([(len(batch), *batch.lengths) for batch in batches], dtype=np.float64)
            waited = hrrn(waited, estimator.estimate_all(features))
        batch = batches[int(waited.argmax())]
        self._batches.remove(batch)
        while len(batch) > 1 and not self._fits(batch, worker):
            batch, rest = batch.halves()
            self._open(rest)
        for request in batch.rows:
            del self._home[request]
            self.waiting.discard(request)
        seconds = 0.0 if estimator is None else estimator.estimate(len(batch), *batch.lengths)
        return self._kit.plan(tuple(batch.rows), seconds)

    def _least_wasteful(self, priority: int, lengths: BatchLengths) -> WaitingBatch | None:
        """Algorithm 1; None if none may take it."""
        limits, useful = self._limits, useful_reads(*lengths)
        found, least, most_tokens = None, float(limits.options.wma_threshold), limits.capacity_tokens or inf
        bounds = [bound for bound in (limits.slots, limits.options.max_batch_size) if bound is not None]
        if self._fixed_size and limits.capacity_tokens is not None and limits.context_length is not None:
            bounds.append(limits.capacity_tokens // limits.context_length)  # β (equation 1)
        most_rows = min(bounds, default=inf)
        for batch in self._batches:
            if batch.insertable and batch.priority == priority and len(batch) < most_rows:
                joined = batch_lengths((batch.lengths, lengths))
                waste = wma_from_least(*joined, min(batch.least_useful, useful))
                if waste < least and memory_tokens(len(batch) + 1, *joined) <= most_tokens:
                    found, least = batch, waste
        return found

    def _fits(self, batch: WaitingBatch, worker: Worker) -> bool:
        slots = min(worker.info.max_rows, self._limits.options.max_batch_size or worker.info.max_rows)
        return len(batch) <= slots and self._kit.memory(worker, len(batch), batch.lengths.columns)

    def _open(self, batch: WaitingBatch) -> None:
        self._batches.append(batch)
        for request in batch.rows:
            self._home[request] = batch


def expected_lengths(request: Request, context_length: int | None) -> BatchLengths:
    """L(p) and G'(p) still to come."""
    left = ceil(remaining_length(request))
    if context_length is not None:
        left = min(left, context_length - request.tokens)
    return BatchLengths(request.tokens, max(1, left))
