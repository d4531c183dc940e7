"""Requests join the running batch when a row leaves it (Baton, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from math import inf

from engine.messages import Entry, RowId
from scheduler.batching.batcher import Kit, Pauses, QueueBatcher
from scheduler.batching.preemption import Background, ByOrder, ByPriority, Preemption
from scheduler.plan import Plan
from scheduler.request import BACKGROUND, Request
from scheduler.worker import Worker


class ContinuousBatcher(QueueBatcher):
    """Fills slots as they free, with groups of similar length where prompts are prefilled apart."""

    def __init__(self, kit: Kit) -> None:
        super().__init__(kit)
        self._background = Background(kit.limits.options.batch_slowdown, kit.machine)
        self._preemptions: list[Preemption] = [self._background]
        if kit.preemption is not None:
            self._preemptions.append(ByOrder(kit.new_keys(), kit.limits.options.slice_length, kit.preemption))
        # Rows that make running ones wait neither wait in the executor nor are read as a padded group.
        embeds = kit.terms.entry is Entry.EMBED
        self._ahead, self._padding = (kit.limits.prefill_ahead, kit.limits.max_padding) if embeds else (0, 1.0)

    def take(self, worker: Worker, now: float) -> Plan | None:
        if not self.waiting:
            return None
        best = self.waiting.best_priority
        # Of several priorities none waits on an executor: the worse would have the slots while the better are read.
        ahead = self._ahead if all(held.priority == best for held in worker.requests.values()) else 0
        slots = worker.info.max_rows - worker.rows + ahead
        if slots < self._fewest() or not self._kit.memory(worker, 1, 1):  # none could join, so none need be ranked
            return None
        return self.serve(similar_group(self._ranked_for(worker, now, slots), worker, self._kit, slots, self._padding))

    def preempt(self, workers: Sequence[Worker], now: float) -> Pauses:
        rules, best = self._preemptions, self.waiting.best_priority if self.waiting else inf
        if any(held.priority > best for worker in workers for held in worker.requests.values()):
            rules = [ByPriority(self._kit.memory), *rules]
        pauses: dict[int, Sequence[RowId]] = {}
        for preemption in rules:
            left = [worker for worker in workers if worker.info.index not in pauses]
            pauses.update(preemption(left, self.waiting.ranked(now), now))
        return pauses

    def _fewest(self) -> int:
        """Slots from which on requests are taken: one, but for background requests as many as are read ahead.

        A prompt that is read alone takes the time of a step from all that run, four together hardly more.
        """
        if self.waiting.best_priority < BACKGROUND:
            return 1
        return max(1, min(len(self.waiting), self._ahead))

    def _ranked_for(self, worker: Worker, now: float, slots: int) -> Iterator[Request]:
        """What waits of the best priority, best first: as many requests as there are slots, or all background requests
        that may run there, from which those of similar length are chosen."""
        ranked, best = iter(self.waiting.ranked(now)), self.waiting.best_priority
        if best < BACKGROUND:
            return islice(takewhile(lambda one: one.priority <= best, ranked), slots)
        return self._background.within(worker, ranked)


def similar_group(
    ranked: Iterable[Request], worker: Worker, kit: Kit, most: int, padding: float
) -> tuple[Request, ...]:
    """The best-ranked request, and after it in rank those that suit it in length and fit in memory, `most` in all.

    `padding` is the most of it in the group, as a share of its cells.

    The best one is never passed over: when it does not fit, nothing is taken, so no long request starves.
    """
    group: list[Request] = []
    longest = widest = tokens = 0  # by the memory's rule, and as they are read; and all of them together
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
