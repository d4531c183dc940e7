"""Static batches, also dynamic by a timeout."""

from itertools import islice
from math import inf

from scheduler.batching.batcher import Batcher, BatcherParts
from scheduler.plan import Plan
from scheduler.request import Request
from scheduler.worker import Worker


class StaticBatcher(Batcher):
    """Up to `max_batch_size` (or `rows`); partial batches wait for `batch_wait_timeout`."""

    def __init__(self, kit: BatcherParts, *, rows: int | None = None) -> None:
        super().__init__(kit)
        self._rows = rows or kit.limits.options.max_batch_size
        self._asked = -inf  # time

    def wake_at(self, now: float) -> float | None:
        return min((end for end in map(self._times_out_at, self.waiting) if end > self._asked), default=None)

    def take(self, worker: Worker, now: float) -> Plan | None:
        self._asked = now
        most = self._rows or worker.info.max_rows
        full = len(self.waiting) >= most
        if worker.requests or not (full or any(self._times_out_at(request) <= now for request in self.waiting)):
            return None
        batch: list[Request] = []
        for request in islice(self.waiting.ranked(now), most):
            longest = max(self._kit.memory.length(other) for other in (*batch, request))
            if not self._kit.memory(worker, len(batch) + 1, longest):
                break
            batch.append(request)
        return self._serve(batch)

    def _times_out_at(self, request: Request) -> float:
        return request.times.arrival + self._kit.limits.options.batch_wait_timeout
