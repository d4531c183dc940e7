"""Requests given to executors in turn as they come, each of which serves its own queue (SCLS, section 5.1: baselines).

Where a request goes does not depend on its length, and none moves to an executor that has less to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from engine.messages import RowId
from scheduler.batching.batcher import Batcher, BatcherFactory, Kit, Pauses
from scheduler.plan import Plan
from scheduler.request import Request
from scheduler.worker import Worker


class RoundRobinBatcher(Batcher):
    """A batcher of its own for each executor, fed by round-robin.

    An executor becomes known when it asks for the first time, and is then given a single request, so that at the start
    the others get their share although they are not known yet.
    """

    waiting: dict[Request, None]

    def __init__(self, kit: Kit, *, local: BatcherFactory) -> None:
        self.waiting = {}
        self._kit = kit
        self._local = local
        self._unassigned: deque[Request] = deque()
        self._queues: dict[int, Batcher] = {}
        self._workers: dict[int, Worker] = {}
        self._last = -1  # index of the executor that was given the last request

    def add(self, request: Request, now: float) -> None:
        self.waiting[request] = None
        self._unassigned.append(request)

    def revise(self, request: Request, now: float) -> None:
        for queue in self._queues.values():
            queue.revise(request, now)

    def discard(self, request: Request) -> bool:
        if request not in self.waiting:
            return False
        del self.waiting[request]
        if request in self._unassigned:
            self._unassigned.remove(request)
        for queue in self._queues.values():
            queue.discard(request)
        return True

    def wake_at(self, now: float) -> float | None:
        moments = (queue.wake_at(now) for queue in self._queues.values())
        return min((moment for moment in moments if moment is not None), default=None)

    def take(self, worker: Worker, now: float) -> Plan | None:
        self._reclaim()
        self._distribute(worker, now)
        plan = self._queues[worker.info.index].take(worker, now)
        for request in plan.requests if plan is not None else ():
            del self.waiting[request]
        return plan

    def preempt(self, workers: Sequence[Worker], now: float) -> Pauses:
        pauses: dict[int, Sequence[RowId]] = {}
        for worker in workers:
            if worker.info.index in self._queues:
                pauses.update(self._queues[worker.info.index].preempt([worker], now))
        return pauses

    def _distribute(self, worker: Worker, now: float) -> None:
        index = worker.info.index
        if index in self._queues:
            while self._unassigned:
                self._give(self._next(), now)
            return
        self._queues[index], self._workers[index] = self._local(self._kit), worker
        if self._unassigned:
            self._give(index, now)

    def _next(self) -> int:
        """Index of the executor that gets the next request."""
        return min(self._queues, key=lambda index: (index <= self._last, index))

    def _give(self, index: int, now: float) -> None:
        self._queues[index].add(self._unassigned.popleft(), now)
        self._last = index

    def _reclaim(self) -> None:
        """Take back the requests that wait for executors that take none."""
        for index in [index for index, worker in self._workers.items() if not worker.serves]:
            self._unassigned.extendleft(reversed(list(self._queues.pop(index).waiting)))
            del self._workers[index]
