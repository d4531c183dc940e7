"""Batches of one slice each, arranged at intervals out of all waiting requests (SCLS, sections 4.4 to 4.6).

It sees executors only when they ask for work, so what it knows of the others is from the last time all did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from engine.messages import Cause
from scheduler.batching.batcher import Kit
from scheduler.batching.dp import Part, partition
from scheduler.plan import Plan
from scheduler.request import Request
from scheduler.worker import Worker

RECENT = 64
"""Slices whose median makes the shortest interval, where none is given."""


class DpBatcher:
    """Parts waiting requests into the batches that take least time in total, and hands these out longest first.

    Executors queue them: with an interval shorter than what they have to do, none of them rests. `capped` batches have
    `max_batch_size` rows at most. An `adaptive` interval is `interval_factor` of the least loaded executor's work.
    """

    def __init__(self, kit: Kit, *, capped: bool = False, adaptive: bool = False) -> None:
        self.waiting: dict[Request, None] = {}
        self._kit = kit
        self._order = kit.new_keys()
        self._capped = capped
        self._adaptive = adaptive
        self._ready: list[Plan] = []  # arranged and not handed out yet, the longest last
        self._recent: deque[float] = deque(maxlen=RECENT)  # estimates of slices, in seconds
        self._arranged: float | None = None
        self._asked: dict[int, Worker] = {}  # executors that asked since a plan was handed out last
        self._loads: dict[int, float] = {}  # what each had to do right after that

    def add(self, request: Request, now: float) -> None:
        self.waiting[request] = None

    def revise(self, request: Request, now: float) -> None:
        """Does nothing: batches are arranged by the tokens that rows have so far."""

    def hand_back(self, requests: Sequence[Request], cause: Cause, now: float) -> None:
        self.waiting.update(dict.fromkeys(requests))

    def discard(self, request: Request) -> bool:
        if request not in self.waiting:
            return False
        del self.waiting[request]
        left = [
            replace(plan, requests=tuple(one for one in plan.requests if one is not request)) for plan in self._ready
        ]
        self._ready = [plan for plan in left if plan.requests]
        return True

    def ranked(self, now: float) -> Iterable[Request]:
        return self.waiting

    def wake_at(self, now: float) -> float | None:
        return self._due() if self.waiting else None

    def take(self, worker: Worker, now: float) -> Plan | None:
        self._asked[worker.info.index] = worker
        self._loads.setdefault(worker.info.index, worker.load)
        if not self._ready and self.waiting and (now >= self._due() or self._all_rest()):
            self._arrange(now)
        if self._ready and not self._fits(self._ready[-1], worker):
            self._arrange(now)  # again, since this executor has less memory than those known before
        return self._hand_out() if self._ready else None

    def _due(self) -> float:
        """The moment at which to arrange again."""
        return -np.inf if self._arranged is None else self._arranged + self._interval()

    def _interval(self) -> float:
        """max(λ · least load, Γ) in seconds, the loads being those right after the last arrangement (equation 12)."""
        limits = self._kit.limits
        shortest = limits.options.min_interval
        if shortest is None:
            shortest = median(self._recent) if self._recent else 0.0
        if not self._adaptive:
            return shortest
        return max(limits.options.interval_factor * min(self._loads.values(), default=0.0), shortest)

    def _all_rest(self) -> bool:
        """Whether no executor has anything to do, so that waiting for the interval's end has no use."""
        return not any(worker.busy for worker in self._asked.values())

    def _arrange(self, now: float) -> None:
        self._arranged = now
        ranked = sorted(self.waiting, key=lambda request: (request.tokens, self._order.key(request, now)))
        plans = [self._kit.plan(ranked[part.start : part.stop], part.seconds) for part in self._parts(ranked)]
        self._ready = sorted(plans, key=lambda plan: plan.estimate)
        self._recent.extend(plan.estimate for plan in plans)

    def _parts(self, ranked: Sequence[Request]) -> tuple[Part, ...]:
        """Batches that any executor can take, as far as they are known."""
        workers = self._asked.values()
        most_rows = min(worker.info.max_rows for worker in workers)
        if self._capped:
            most_rows = min(most_rows, self._kit.limits.options.max_batch_size or most_rows)
        capacity, iterations = min(worker.capacity_tokens for worker in workers), self._kit.limits.options.slice_length
        fitting = (self._kit.memory.most(capacity, request.tokens + iterations) for request in ranked)
        return partition(
            np.array([request.tokens for request in ranked], dtype=np.int64),
            np.array([request.needs_prefill for request in ranked]),
            self._kit.machine.usable,
            iterations=iterations,
            most_rows=np.array([min(rows, most_rows) for rows in fitting], dtype=np.int64),
        )

    def _fits(self, plan: Plan, worker: Worker) -> bool:
        longest = max(request.tokens for request in plan.requests)
        return self._kit.memory(worker, len(plan.requests), longest + self._kit.limits.options.slice_length)

    def _hand_out(self) -> Plan:
        plan = self._ready.pop()
        for request in plan.requests:
            del self.waiting[request]
        self._asked.clear()
        self._loads.clear()
        return plan
