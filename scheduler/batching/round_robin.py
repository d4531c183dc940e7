"""Round robin over executors with own queues (SCLS, 5.1)."""

from collections import deque
from collections.abc import Sequence

from scheduler.batching.batcher import Batcher, BatcherFactory, BatcherParts, Pauses
from scheduler.clock import earliest
from scheduler.plan import Plan
from scheduler.request import Request
from scheduler.waiting.by_length import Arrived
from scheduler.waiting.queue import RankedQueue
from scheduler.worker import Worker


class RoundRobinBatcher(Batcher):
    """A batcher for each executor, known from its first call on."""

    def __init__(self, kit: BatcherParts, *, local: BatcherFactory) -> None:
        super().__init__(kit, RankedQueue(Arrived()))
        self._local = local
        self._unassigned: deque[Request] = deque()
        self._queues: dict[int, Batcher] = {}
        self._workers: dict[int, Worker] = {}
        self._last = -1

    def add(self, request: Request, now: float) -> None:
        super().add(request, now)
        self._unassigned.append(request)

    def revise(self, request: Request, now: float) -> None:
        super().revise(request, now)
        for queue in self._queues.values():
            queue.revise(request, now)

    def discard(self, request: Request) -> bool:
        if not super().discard(request):
            return False
        if request in self._unassigned:
            self._unassigned.remove(request)
        for queue in self._queues.values():
            queue.discard(request)
        return True

    def ended(self, request: Request) -> None:
        for queue in self._queues.values():
            queue.ended(request)

    def wake_at(self, now: float) -> float | None:
        return earliest(*(queue.wake_at(now) for queue in self._queues.values()))

    def take(self, worker: Worker, now: float) -> Plan | None:
        for gone in [index for index, known in self._workers.items() if not known.serves]:
            self._unassigned.extendleft(reversed(list(self._queues.pop(gone).waiting)))
            del self._workers[gone]
        index, count = worker.index, len(self._unassigned)
        if is_new := index not in self._queues:
            self._queues[index], self._workers[index] = self._local(self._kit), worker
        for _ in range(min(1, count) if is_new else count):
            self._last = index if is_new else min(self._queues, key=lambda index: (index <= self._last, index))
            self._queues[self._last].add(self._unassigned.popleft(), now)
        plan = self._queues[index].take(worker, now)
        for request in plan.requests if plan is not None else ():
            self.waiting.discard(request)
        return plan

    def preempt(self, workers: Sequence[Worker], now: float) -> Pauses:
        known = (worker for worker in workers if worker.index in self._queues)
        asked = (self._queues[worker.index].preempt([worker], now) for worker in known)
        return {index: rows for pauses in asked for index, rows in pauses.items()}
