"""Requests join the running batch when a row leaves it (Baton, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, takewhile

from engine.messages import Entry
from scheduler.batching.batcher import Kit, QueueBatcher
from scheduler.batching.preemption import Background
from scheduler.plan import Plan
from scheduler.request import BACKGROUND, Request
from scheduler.worker import Worker


class ContinuousBatcher(QueueBatcher):
    """Fills slots as they free, with groups of similar length where prompts are prefilled apart."""

    def __init__(self, kit: Kit) -> None:
        super().__init__(kit)
        self._background = Background(kit.limits.options.batch_slowdown, kit.machine)
        # Rows that make running ones wait neither wait in the executor nor are read as a padded group.
        embeds = kit.terms.entry is Entry.EMBED
        self._ahead, self._padding = (kit.limits.prefill_ahead, kit.limits.max_padding) if embeds else (0, 1.0)

    def take(self, worker: Worker, now: float) -> Plan | None:
        if not self.waiting:
            return None
        seen = worker.as_seen_by(self.waiting.best_priority)
        slots = seen.info.max_rows + self._ahead - seen.rows
        if slots < self._fewest() or not self._kit.memory(seen, 1, 1):  # none could join, so none need be ranked
            return None
        return self.serve(similar_group(self._ranked_for(worker, now, slots), seen, self._kit, slots, self._padding))

    def _fewest(self) -> int:
        """Slots from which on requests are taken: one, but for background requests as many as are read ahead.

        A prompt that is read alone takes the time of a step from all that run, four together hardly more.
        """
        if self.waiting.best_priority < BACKGROUND:
            return 1
        return max(1, min(len(self.waiting), self._ahead))

    def _ranked_for(self, worker: Worker, now: float, slots: int) -> Iterator[Request]:
        """What waits, best first: as many requests as there are slots and no background ones among them, or else all
        background requests that may run there, from which those of similar length are chosen."""
        ranked = iter(self.waiting.ranked(now))
        if self.waiting.best_priority < BACKGROUND:
            return islice(takewhile(lambda one: not one.in_background, ranked), slots)
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
