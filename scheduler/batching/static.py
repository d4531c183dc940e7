"""Closed batches, each taken from the front of the queue when an executor is idle (vanilla scheduling)."""

from __future__ import annotations

from collections import deque
from itertools import islice
from math import inf

from scheduler.batching.batcher import Kit, QueueBatcher
from scheduler.plan import Plan
from scheduler.request import Request
from scheduler.worker import Worker


class StaticBatcher(QueueBatcher):
    """At most `max_batch_size` of the best-ranked requests at a time, as many as fit in memory.

    A batch that is not full waits for more until its oldest request has waited for `batch_wait_timeout`, which is
    dynamic batching; with a timeout of 0 an idle executor takes what there is. `rows` overrides `max_batch_size`.
    """

    def __init__(self, kit: Kit, *, rows: int | None = None) -> None:
        super().__init__(kit)
        self._rows = rows or kit.limits.options.max_batch_size
        self._asked = -inf  # when an executor was last asked
        self._timeouts: deque[float] = deque()  # when those that came will have waited long enough

    def add(self, request: Request, now: float) -> None:
        super().add(request, now)
        self._timeouts.append(self._times_out_at(request))

    def wake_at(self, now: float) -> float | None:
        while self._timeouts and self._timeouts[0] <= self._asked:  # `take` has seen these already
            self._timeouts.popleft()
        return self._timeouts[0] if self._timeouts and self.waiting else None

    def take(self, worker: Worker, now: float) -> Plan | None:
        self._asked = now
        most = self._rows or worker.info.max_rows
        full = len(self.waiting) >= most
        if worker.busy or not (full or any(self._times_out_at(request) <= now for request in self.waiting)):
            return None
        batch: list[Request] = []
        for request in islice(self.waiting.ranked(now), most):
            longest = max(self._kit.memory.length(other) for other in (*batch, request))
            if not self._kit.memory(worker, len(batch) + 1, longest):
                break
            batch.append(request)
        return self.serve(batch)

    def _times_out_at(self, request: Request) -> float:
        """When a request has waited long enough for others."""
        return request.times.arrival + self._kit.limits.options.batch_wait_timeout
