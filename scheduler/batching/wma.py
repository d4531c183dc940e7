"""Batches arranged as requests arrive, so that little memory access is wasted (Magnus, sections III-C and III-E).

The executor that a batch will run on is not known when it is arranged: what it may grow to is what the smallest
executor holds, and the one that takes it is asked again. Batches of better priority go before all others.

Wasted memory accesses: how much of what a static batch reads serves no answer (Magnus, section III-C).

A row that runs in a batch of input length L(B) and generation length G(B) reads L(B) + g cells of K and V in the
iteration after its g-th token. Reads of its padding are wasted, and all reads after its end token are.

The waste of a row in a batch is

    WMA_gen(p)  = G(p)·(L(B) - L(p))                     equation 2: reads of padding while it generates its answer
    WMA_wait(p) = Σ_{g=G(p)..G(B)} (g + L(B))            equation 3: reads while it waits for the others to end
    WMA(B)      = max_p (WMA_gen(p) + WMA_wait(p))       equation 4

As in the paper the sum of equation 3 has both its ends, so the row that ends last is charged for one iteration too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from engine.messages import Cause
from scheduler.batching.batcher import Batcher, Kit
from scheduler.plan import Plan, Worker
from scheduler.remaining_length import remaining_length
from scheduler.request import Request
from scheduler.serving_time.bilinear import LEAST_SECONDS, FloatArray
from scheduler.waiting.by_length import Arrived
from scheduler.waiting.ranked import RankedQueue


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


def useful_reads(input_length: int, generation_length: int) -> int:
    """Σ_{g=0..G(p)-1} (L(p) + g): reads of a row's own tokens up to its end token, the same in every batch."""
    return generation_length * input_length + generation_length * (generation_length - 1) // 2


def all_reads(input_length: int, generation_length: int) -> int:
    """Σ_{g=0..G(B)} (L(B) + g): reads of any one row of a batch, with equation 3's one iteration more."""
    return (generation_length + 1) * input_length + generation_length * (generation_length + 1) // 2


def wma_from_least(input_length: int, generation_length: int, least_useful_reads: int) -> int:
    """WMA(B) without a look at its rows: from L(B), G(B) and the least useful reads of any row.

    All rows of a batch read the same number of cells, and what is not useful is wasted: the terms G(p)·L(B) of
    equations 2 and 3 cancel, so WMA_gen(p) + WMA_wait(p) = all_reads(B) - useful_reads(p). The most wasteful row is
    the one with the fewest useful reads, whichever batch it is in, so a batch need not remember the others.
    """
    return all_reads(input_length, generation_length) - least_useful_reads


def memory_tokens(rows: int, input_length: int, generation_length: int) -> int:
    """MEM(B) / Δ = N·(L(B) + G(B)): tokens of K and V that a batch holds at its end (equation 5)."""
    return rows * (input_length + generation_length)


def hrrn(waited: FloatArray, seconds: FloatArray) -> FloatArray:
    """Response ratios (batches,): seconds that the oldest request of each has waited / its serving time."""
    return np.asarray(waited / np.maximum(seconds, LEAST_SECONDS))


class WaitingBatch:
    """Requests of one priority that shall run together; others may join them while it is `insertable`. Never empty."""

    def __init__(self, rows: dict[Request, Lengths], *, insertable: bool = True) -> None:
        self.rows = rows
        """Each with the lengths that it had when it came, since these decided that it came here."""
        self.insertable = insertable
        self.priority = next(iter(rows)).priority
        self.count()

    def __len__(self) -> int:
        return len(self.rows)

    def count(self) -> None:
        """Take note of its rows, since they have changed."""
        self.lengths = batch_lengths(self.rows.values())
        """L(B) and G'(B)."""
        self.least_useful = min(useful_reads(*lengths) for lengths in self.rows.values())
        """The least useful reads of any of its rows."""
        self.oldest = min(request.times.arrival for request in self.rows)
        """When its oldest request arrived."""

    def halves(self) -> tuple[WaitingBatch, WaitingBatch]:
        """Two even batches that no request joins (Magnus, section III-C); there must be two requests at least."""
        pairs = list(self.rows.items())
        middle = (len(pairs) + 1) // 2
        first, second = dict(pairs[:middle]), dict(pairs[middle:])
        return WaitingBatch(first, insertable=False), WaitingBatch(second, insertable=False)


class WmaBatcher(Batcher):
    """A request joins the batch that wastes least with it in, or opens one; an idle executor takes the best batch."""

    def __init__(self, kit: Kit, *, fixed_size: bool = False) -> None:
        super().__init__(kit, RankedQueue(Arrived()))
        self._limits = kit.limits
        self._fixed_size = fixed_size
        self._batches: list[WaitingBatch] = []  # in the order in which they were opened
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
        """Find a request the right batch again; one in a half of a batch that was split stays there."""
        batch = self._home.get(request)
        if batch is not None and batch.insertable:
            self.discard(request)
            self.add(request, now)

    def hand_back(self, requests: Sequence[Request], cause: Cause, now: float) -> None:
        """Take requests back; a batch that ran out of memory comes back as two closed halves (section III-C)."""
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
        batch = self._first(now)
        self._batches.remove(batch)
        batch = self._cut(batch, worker)
        for request in batch.rows:
            del self._home[request]
            self.waiting.discard(request)
        return self._plan(batch)

    def _least_wasteful(self, priority: int, lengths: Lengths) -> WaitingBatch | None:
        """The batch that wastes least once such a request is in it, if it may join any (algorithm 1)."""
        found, least = None, float(self._limits.options.wma_threshold)
        useful, most_rows, most_tokens = useful_reads(*lengths), self._most_rows, self._limits.capacity_tokens or inf
        for batch in self._batches:
            if batch.insertable and batch.priority == priority and len(batch) < most_rows:
                joined = batch_lengths((batch.lengths, lengths))
                waste = wma_from_least(*joined, min(batch.least_useful, useful))
                if waste < least and memory_tokens(len(batch) + 1, *joined) <= most_tokens:
                    found, least = batch, waste
        return found

    @property
    def _most_rows(self) -> float:
        """Rows that a batch may have; with a fixed size at most β, so that none runs out of memory (equation 1)."""
        limits = self._limits
        bounds = [bound for bound in (limits.slots, limits.options.max_batch_size) if bound is not None]
        if self._fixed_size and limits.capacity_tokens is not None and limits.context_length is not None:
            bounds.append(limits.capacity_tokens // limits.context_length)
        return min(bounds, default=inf)

    def _first(self, now: float) -> WaitingBatch:
        """The batch to serve next: of the best priority there is, the one with the highest response ratio; without
        estimates, the one with the oldest request."""
        best = min(batch.priority for batch in self._batches)
        batches = [batch for batch in self._batches if batch.priority == best]
        waited = np.array([now - batch.oldest for batch in batches])
        if self._kit.estimator is not None:
            features = np.array([(len(batch), *batch.lengths) for batch in batches], dtype=np.float64)
            waited = hrrn(waited, self._kit.estimator.estimate_all(features))
        return batches[int(waited.argmax())]

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
        self._batches.append(batch)
        for request in batch.rows:
            self._home[request] = batch

    def _plan(self, batch: WaitingBatch) -> Plan:
        estimator = self._kit.estimator
        seconds = 0.0 if estimator is None else estimator.estimate(len(batch), *batch.lengths)
        return self._kit.plan(tuple(batch.rows), seconds)


def expected_lengths(request: Request, context_length: int | None) -> Lengths:
    """L(p) and G'(p) of what is still to do, in whole tokens, for an executor with such a context, where known.

    A request that was handed back has K and V for what it generated, which therefore counts as input.
    """
    left = ceil(remaining_length(request))
    if context_length is not None:
        left = min(left, context_length - request.tokens)
    return Lengths(request.tokens, max(1, left))
