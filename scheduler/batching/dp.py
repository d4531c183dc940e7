"""Batches of one slice, of least total time, at intervals (SCLS, 4.4 to 4.6)."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from scheduler.batching.batcher import Batcher, BatcherParts
from scheduler.plan import Plan
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear
from scheduler.waiting.by_length import Arrived
from scheduler.waiting.queue import RankedQueue
from scheduler.worker import Worker

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Rows [start, stop)."""

    start: int
    stop: int
    seconds: float


EQUAL = 1 + 1e-12  # ratio of equal sums; larger batches win ties


def partition(
    lengths: IntArray, fresh: BoolArray, model: Bilinear, *, iterations: int, most_rows: IntArray
) -> tuple[BatchPart, ...]:
    """Contiguous parts of least total time: `lengths` (rows,) ascend, `fresh` (rows,) need prefill, `most_rows[i]`
    bounds parts ending at i.

            T[i] = min over j of T[j-1] + T_serve(i-j+1, L_i, S)                         (equation 10)

        The last fresh row is a part's longest fresh one.
    """
    before = np.concatenate(([0.0], np.cumsum(fresh, dtype=np.float64)))
    least = np.zeros(len(lengths) + 1)  # seconds
    cuts, longest = [0], 0.0
    given = zip(lengths.tolist(), fresh.tolist(), most_rows.tolist(), strict=True)
    for stop, (length, is_fresh, most) in enumerate(given, start=1):
        longest = float(length) if is_fresh else longest
        starts = np.arange(max(0, stop - max(most, 1)), stop)
        read = before[stop] - before[starts]
        prefill = np.where(read > 0, model.prefill(read, longest), 0.0)
        totals = least[starts] + model.decode((stop - starts).astype(np.float64), length, iterations) + prefill
        best = int((totals <= totals.min() * EQUAL).argmax())
        cuts.append(int(starts[best]))
        least[stop] = totals[best]
    parts, stop = deque[BatchPart](), len(lengths)
    while stop > 0:  # `cuts[i]`: begin of the last part of the first i rows
        rows = slice(cuts[stop], stop)
        parts.appendleft(BatchPart(rows.start, stop, slice_seconds(lengths[rows], fresh[rows], model, iterations)))
        stop = rows.start
    return tuple(parts)


def slice_seconds(lengths: IntArray, fresh: BoolArray, model: Bilinear, iterations: int) -> float:
    """T_serve: prefill of fresh rows, copies of others, `iterations` of all."""
    seconds = model.decode(len(lengths), int(lengths.max()), iterations)
    prompts, copied = lengths[fresh], lengths[~fresh].astype(np.float64)
    if len(prompts):
        seconds += model.prefill(len(prompts), int(prompts.max()))
    return seconds + float(model.copy(copied).sum())


RECENT = 64  # slices for the default interval


class DpBatcher(Batcher):
    """Hands batches out longest first. `capped`: by `max_batch_size`. `adaptive`: `interval_factor` times the least
    loaded executor's work.
    """

    def __init__(self, kit: BatcherParts, *, capped: bool = False, adaptive: bool = False) -> None:
        super().__init__(kit, RankedQueue(Arrived()))
        self._key = kit.new_keys()
        self._capped = capped
        self._adaptive = adaptive
        self._ready: list[Plan] = []  # longest last
        self._recent: deque[float] = deque(maxlen=RECENT)  # seconds
        self._arranged: float | None = None
        self._asked: dict[int, Worker] = {}
        self._loads: dict[int, float] = {}

    def discard(self, request: Request) -> bool:
        if not super().discard(request):
            return False
        left = [
            replace(plan, requests=tuple(one for one in plan.requests if one is not request)) for plan in self._ready
        ]
        self._ready = [plan for plan in left if plan.requests]
        return True

    def wake_at(self, now: float) -> float | None:
        return self._due() if self.waiting else None

    def take(self, worker: Worker, now: float) -> Plan | None:
        self._asked[worker.index] = worker
        self._loads.setdefault(worker.index, worker.load)
        # idle: no need to wait
        rest = not any(one.requests for one in self._asked.values())
        if not self._ready and self.waiting and (now >= self._due() or rest):
            self._arrange(now)
        if self._ready and not self._fits(self._ready[-1], worker):
            self._arrange(now)  # this executor has less memory
        if not self._ready:
            return None
        plan = self._ready.pop()
        for request in plan.requests:
            self.waiting.discard(request)
        self._asked.clear()
        self._loads.clear()
        return plan

    def _due(self) -> float:
        """After max(λ · least load, Γ) seconds (equation 12)."""
        if self._arranged is None:
            return -np.inf
        options = self._kit.limits.options
        interval = median(self._recent or (0.0,)) if options.min_interval is None else options.min_interval
        if self._adaptive:
            interval = max(options.interval_factor * min(self._loads.values(), default=0.0), interval)
        return self._arranged + interval

    def _arrange(self, now: float) -> None:
        self._arranged = now
        ranked = sorted(self.waiting, key=lambda request: (request.tokens, self._key(request, now)))
        plans = [self._kit.plan(ranked[part.start : part.stop], part.seconds) for part in self._parts(ranked)]
        self._ready = sorted(plans, key=lambda plan: plan.estimate)
        self._recent.extend(plan.estimate for plan in plans)

    def _parts(self, ranked: Sequence[Request]) -> tuple[BatchPart, ...]:
        workers = self._asked.values()
        most_rows = min(worker.info.max_rows for worker in workers)
        if self._capped:
            most_rows = min(most_rows, self._kit.limits.options.max_batch_size or most_rows)
        capacity, iterations = min(worker.capacity_tokens for worker in workers), self._kit.limits.options.slice_length
        fitting = (self._kit.memory.most(capacity, request.tokens + iterations) for request in ranked)
        most = np.array([min(rows, most_rows) for rows in fitting], dtype=np.int64)
        lengths = np.array([request.tokens for request in ranked], dtype=np.int64)
        fresh = np.array([request.needs_prefill for request in ranked])
        return partition(lengths, fresh, self._kit.machine.usable, iterations=iterations, most_rows=most)

    def _fits(self, plan: Plan, worker: Worker) -> bool:
        longest = max(request.tokens for request in plan.requests)
        return self._kit.memory(worker, len(plan.requests), longest + self._kit.limits.options.slice_length)
