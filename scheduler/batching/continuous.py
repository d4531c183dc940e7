"""Continuous batching: rows join as slots free (Baton, 4.2)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, takewhile
from math import inf

from engine.messages import Entry, RowId, is_compact
from models.recent import Recent
from scheduler.batching.batcher import Batcher, BatcherParts, Pauses
from scheduler.batching.preemption import Background, ByOrder, ByPriority, Preemption
from scheduler.plan import Plan
from scheduler.request import BACKGROUND, Request
from scheduler.waiting.fair import Fair
from scheduler.waiting.returning import SlotReservations
from scheduler.worker import Worker

REMEMBERED = 65536  # keys, LRU


class ContinuousBatcher(Batcher):
    """Refills slots, in similar-length groups where prefill is apart."""

    def __init__(self, kit: BatcherParts) -> None:
        super().__init__(kit)
        self._background = Background(kit.limits.options.batch_slowdown, kit.machine)
        # rules, and how many executors each may ask at once
        self._preemptions: list[tuple[Preemption, int | None]] = [(self._background, None)]
        if kit.preemption is not None:
            self._preemptions.append((ByOrder(kit.new_keys(), kit.limits.options.slice_length, kit.preemption), 1))
        embeds = kit.terms.entry is Entry.EMBED
        self._ahead, self._padding = (kit.limits.prefill_ahead, kit.limits.max_padding) if embeds else (0, 1.0)
        self._returning = SlotReservations() if isinstance(self.waiting.order, Fair) and not self._ahead else None
        self._affinity = Recent[str, Worker](REMEMBERED)  # by `prompt_cache_key`: holds prompts that begin alike

    def add(self, request: Request, now: float) -> None:
        super().add(request, now)
        if self._returning is not None:
            self._returning.come(request)

    def ended(self, request: Request) -> None:
        super().ended(request)
        if self._returning is not None:
            self._returning.leave(request)

    def wake_at(self, now: float) -> float | None:
        return None if self._returning is None or not self.waiting else self._returning.next_end(now)

    def take(self, worker: Worker, now: float) -> Plan | None:
        if not self.waiting:
            return None
        best = self.waiting.best_priority
        # else worse rows would hold slots
        ahead = self._ahead if all(held.priority == best for held in worker.requests.values()) else 0
        slots = self._free_slots(worker, now) + ahead
        # for background requests a group, as prefill costs all running rows a step
        fewest = 1 if best < BACKGROUND else max(1, min(len(self.waiting), self._ahead))
        if slots < fewest or not (fits := self._kit.memory.beside(worker))(1, 1):  # none could join
            return None
        taken = similar_group(self._ranked_for(worker, now, slots, best), fits, self._kit, slots, self._padding)
        for request in taken:
            if request.prompt_cache_key:
                self._affinity[request.prompt_cache_key] = worker
        if self._returning is not None:
            self._returning.run(taken, worker.index)
        return self._serve(taken)

    def preempt(self, workers: Sequence[Worker], now: float) -> Pauses:
        rules, waiting = self._preemptions, len(self.waiting)
        best = self.waiting.best_priority if waiting else inf
        worse = any(held.priority > best for worker in workers for held in worker.requests.values())
        if worse and not any(worker.pausing for worker in workers):
            rules = [(ByPriority(self._kit.memory), 1), *rules]
        pauses: dict[int, Sequence[RowId]] = {}
        for rule, most in rules:
            left = [worker for worker in workers if worker.index not in pauses]
            asked = ((worker.index, rule(worker, self.waiting.ranked(now) if waiting else (), now)) for worker in left)
            pauses.update(islice((one for one in asked if one[1]), most))
        return pauses

    def _free_slots(self, worker: Worker, now: float) -> int:
        kept = 0 if self._returning is None else self._returning.kept(worker.index, now)
        return worker.port.info.max_rows - worker.rows - kept

    def _without_others(self, worker: Worker, ranked: Iterable[Request], now: float) -> Iterator[Request]:
        left_out: Counter[int] = Counter()
        for request in ranked:
            known = self._affinity.get(request.prompt_cache_key)
            if known is not None and known.serves and known is not worker:
                rows = left_out[known.index] + 1
                room = self._kit.memory(known, rows, self._kit.memory.length(request))
                if room and rows <= self._free_slots(known, now):
                    left_out[known.index] = rows
                    continue
            yield request

    def _ranked_for(self, worker: Worker, now: float, slots: int, best: float) -> Iterator[Request]:
        ranked = iter(self.waiting.ranked(now))
        if self._affinity:
            ranked = self._without_others(worker, ranked, now)
        if best < BACKGROUND:
            return islice(takewhile(lambda one: one.priority <= best, ranked), slots)
        return self._background.within(worker, ranked)


def similar_group(
    ranked: Iterable[Request], fits: Callable[[int, int], bool], kit: BatcherParts, most: int, padding: float
) -> tuple[Request, ...]:
    """The best request, and others that suit its length and memory, up to `most` and `padding`; none where the best
    does not fit.
    """
    group: list[Request] = []
    longest = widest = tokens = 0
    for request in ranked:
        rows, needed = len(group) + 1, max(longest, kit.memory.length(request))
        if rows > most or not fits(rows, needed):
            break
        length = request.tokens
        wide, read = max(widest, length), tokens + length
        if not group or is_compact(rows, wide, read, kit.limits.group_tokens, padding):
            group.append(request)
            longest, widest, tokens = needed, wide, read
    return tuple(group)
