"""Batchers over queues: continuous batching (Baton, 4.2), static batches (vanilla scheduling), and round-robin queues
of each executor (SCLS, 5.1, baselines).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from math import inf

from engine.messages import Entry, RowId
from scheduler.batching.affinity import Affinity
from scheduler.batching.batcher import Batcher, BatcherFactory, Kit, Pauses
from scheduler.batching.preemption import Background, ByOrder, ByPriority, Preemption
from scheduler.clock import earliest
from scheduler.plan import Plan, Worker
from scheduler.request import BACKGROUND, Request
from scheduler.waiting.by_length import Arrived
from scheduler.waiting.fair import Fair
from scheduler.waiting.ranked import RankedQueue
from scheduler.waiting.returning import Returning


class ContinuousBatcher(Batcher):
    """Fills slots as they free, with groups of similar length where prompts are prefilled apart."""

    def __init__(self, kit: Kit) -> None:
        super().__init__(kit)
        self._background = Background(kit.limits.options.batch_slowdown, kit.machine)
        # rules, and how many executors each may ask at once
        self._preemptions: list[tuple[Preemption, int | None]] = [(self._background, None)]
        if kit.preemption is not None:
            self._preemptions.append((ByOrder(kit.new_keys(), kit.limits.options.slice_length, kit.preemption), 1))
        # rows that block running ones are neither read ahead nor as a padded group
        embeds = kit.terms.entry is Entry.EMBED
        self._ahead, self._padding = (kit.limits.prefill_ahead, kit.limits.max_padding) if embeds else (0, 1.0)
        # a row already on the executor gets the slot first
        self._returning = Returning() if isinstance(self.waiting.order, Fair) and not self._ahead else None
        self._affinity = Affinity()

    def add(self, request: Request, now: float) -> None:
        super().add(request, now)
        if self._returning is not None:
            self._returning.come(request)

    def discard(self, request: Request) -> bool:
        waited = super().discard(request)
        if waited and self._returning is not None:
            self._returning.leave(request)
        return waited

    def wake_at(self, now: float) -> float | None:
        return None if self._returning is None or not self.waiting else self._returning.next_end(now)

    def take(self, worker: Worker, now: float) -> Plan | None:
        if not self.waiting:
            return None
        best = self.waiting.best_priority
        # several priorities: nothing is read ahead, or worse rows would hold the slots
        ahead = self._ahead if all(held.priority == best for held in worker.requests.values()) else 0
        slots = self._free_slots(worker, now) + ahead
        if slots < self._fewest(best) or not self._kit.memory(worker, 1, 1):  # none could join, so none need be ranked
            return None
        taken = similar_group(self._ranked_for(worker, now, slots, best), worker, self._kit, slots, self._padding)
        if keyed := [request for request in taken if request.prompt_cache_key]:
            self._affinity.run(keyed, worker)
        if self._returning is not None:
            self._returning.run(taken, worker.info.index)
        return self._serve(taken)

    def preempt(self, workers: Sequence[Worker], now: float) -> Pauses:
        rules, best = self._preemptions, self.waiting.best_priority if self.waiting else inf
        worse = any(held.priority > best for worker in workers for held in worker.requests.values())
        if worse and not any(worker.pausing for worker in workers):
            rules = [(ByPriority(self._kit.memory), 1), *rules]
        pauses: dict[int, Sequence[RowId]] = {}
        for rule, most in rules:
            left = [worker for worker in workers if worker.info.index not in pauses]
            asked = ((worker.info.index, rule(worker, self.waiting.ranked(now), now)) for worker in left)
            pauses.update(islice((one for one in asked if one[1]), most))
        return pauses

    def _free_slots(self, worker: Worker, now: float) -> int:
        kept = 0 if self._returning is None else self._returning.kept(worker.info.index, now)
        return worker.info.max_rows - worker.rows - kept

    def _without_others(self, worker: Worker, ranked: Iterable[Request], now: float) -> Iterator[Request]:
        """Skip requests whose prefix is cached on another executor that has room now."""
        left_out: Counter[int] = Counter()
        for request in ranked:
            known = self._affinity.worker(request)
            if known is not None and known is not worker:
                rows = left_out[known.info.index] + 1
                room = self._kit.memory(known, rows, self._kit.memory.length(request))
                if room and rows <= self._free_slots(known, now):
                    left_out[known.info.index] = rows
                    continue
            yield request

    def _fewest(self, best: float) -> int:
        """Least free slots worth filling: 1, for background requests a whole group, since reading a prompt alone takes
        a step from all that run.
        """
        if best < BACKGROUND:
            return 1
        return max(1, min(len(self.waiting), self._ahead))

    def _ranked_for(self, worker: Worker, now: float, slots: int, best: float) -> Iterator[Request]:
        """Waiting requests of the best priority in order, from which a group is chosen."""
        ranked = iter(self.waiting.ranked(now))
        if self._affinity.workers:
            ranked = self._without_others(worker, ranked, now)
        if best < BACKGROUND:
            return islice(takewhile(lambda one: one.priority <= best, ranked), slots)
        return self._background.within(worker, ranked)


def similar_group(
    ranked: Iterable[Request], worker: Worker, kit: Kit, most: int, padding: float
) -> tuple[Request, ...]:
    """The best-ranked request and, in rank, those that suit it in length and memory, at most `most`.

    `padding` bounds the group's share of padding. Where the best does not fit nothing is taken, so that none starves.
    """
    group: list[Request] = []
    longest = widest = tokens = 0  # by the memory's rule; as read; all together
    for request in ranked:
        rows, needed = len(group) + 1, max(longest, kit.memory.length(request))
        if rows > most or not kit.memory(worker, rows, needed):
            break
        cells, read = rows * max(widest, request.tokens), tokens + request.tokens
        fits = cells <= kit.limits.group_tokens and cells - read <= padding * cells
        if fits or not group:
            group.append(request)
            longest, widest, tokens = needed, max(widest, request.tokens), read
    return tuple(group)


class StaticBatcher(Batcher):
    """At most `max_batch_size` of the best-ranked requests, as fit in memory.

    A batch that is not full waits until its oldest has waited for `batch_wait_timeout` (dynamic batching). `rows`
    overrides `max_batch_size`.
    """

    def __init__(self, kit: Kit, *, rows: int | None = None) -> None:
        super().__init__(kit)
        self._rows = rows or kit.limits.options.max_batch_size
        self._asked = -inf  # when an executor last asked: older waits were seen then

    def wake_at(self, now: float) -> float | None:
        moments = map(self._times_out_at, self.waiting)
        return min((moment for moment in moments if moment > self._asked), default=None)

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
        """When a request has waited long enough."""
        return request.times.arrival + self._kit.limits.options.batch_wait_timeout


class RoundRobinBatcher(Batcher):
    """A batcher for each executor, fed round-robin.

    An executor is known from its first call on, which gets one request, so that the others get their share.
    """

    def __init__(self, kit: Kit, *, local: BatcherFactory) -> None:
        super().__init__(kit, RankedQueue(Arrived()))
        self._local = local
        self._unassigned: deque[Request] = deque()
        self._queues: dict[int, Batcher] = {}
        self._workers: dict[int, Worker] = {}
        self._last = -1  # executor of the last request

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

    def wake_at(self, now: float) -> float | None:
        return earliest(*(queue.wake_at(now) for queue in self._queues.values()))

    def take(self, worker: Worker, now: float) -> Plan | None:
        self._reclaim()
        self._distribute(worker, now)
        plan = self._queues[worker.info.index].take(worker, now)
        for request in plan.requests if plan is not None else ():
            self.waiting.discard(request)
        return plan

    def preempt(self, workers: Sequence[Worker], now: float) -> Pauses:
        pauses: dict[int, Sequence[RowId]] = {}
        for worker in workers:
            if worker.info.index in self._queues:
                pauses.update(self._queues[worker.info.index].preempt([worker], now))
        return pauses

    def _distribute(self, worker: Worker, now: float) -> None:
        """Distribute new requests, or give one to an executor that asks for the first time."""
        index, count = worker.info.index, len(self._unassigned)
        if is_new := index not in self._queues:
            self._queues[index], self._workers[index] = self._local(self._kit), worker
        for _ in range(min(1, count) if is_new else count):
            self._last = index if is_new else min(self._queues, key=lambda index: (index <= self._last, index))
            self._queues[self._last].add(self._unassigned.popleft(), now)

    def _reclaim(self) -> None:
        """Take back requests of executors that take none."""
        for index in [index for index, worker in self._workers.items() if not worker.serves]:
            self._unassigned.extendleft(reversed(list(self._queues.pop(index).waiting)))
            del self._workers[index]
