"""Requests join the running batch when a row leaves it (Baton, section 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

from engine.messages import Cause, Entry
from scheduler.batching.batcher import Kit, Limits
from scheduler.plan import Plan
from scheduler.request import Request
from scheduler.waiting.ranked import RankedQueue
from scheduler.worker import Worker


class Line(Collection[Request], Protocol):
    """What a batcher takes requests from; it says whose turn it is."""

    def best_class(self, now: float) -> int:
        """The best `priority` that waits; only asked while anything does."""
        ...

    def add(self, request: Request) -> None: ...

    def discard(self, request: Request) -> bool:
        """Forget a request; False when it was not here."""
        ...

    def revise(self, request: Request) -> None:
        """What is predicted of a request has changed; nothing happens when it is not here."""
        ...

    def first(self, worker: Worker, now: float, count: int) -> Sequence[Request]:
        """The best `count` for this executor, best first, or less if others had better wait; only asked while anything
        waits."""
        ...

    def serve(self, request: Request) -> None:
        """A request leaves since its turn has come."""
        ...


class OrderedLine(RankedQueue):
    """All in one order, whichever executor asks."""

    def best_class(self, now: float) -> int:
        self.rank(now)
        return next(iter(self)).priority

    def first(self, worker: Worker, now: float, count: int) -> Sequence[Request]:
        self.rank(now)
        return list(islice(self, count))

    def serve(self, request: Request) -> None:
        self.discard(request)


def _ordered(kit: Kit) -> Line:
    return OrderedLine(kit.order)


def all_slots(worker: Worker, limits: Limits) -> int:
    """Rows that an executor may hold: one for each slot, and some that wait prefilled."""
    return worker.info.max_rows + limits.prefill_ahead


class ContinuousBatcher:
    """Fills slots as they free, with groups of similar length where prompts are prefilled apart.

    `line` says whose turn it is, `most_rows` how many rows an executor may hold.
    """

    def __init__(
        self,
        kit: Kit,
        *,
        line: Callable[[Kit], Line] = _ordered,
        most_rows: Callable[[Worker, Limits], int] = all_slots,
    ) -> None:
        self.waiting = line(kit)
        self._most_rows = most_rows
        self._kit = _without_waiting_rooms(kit) if kit.terms.entry is Entry.SHAPE else kit

    def add(self, request: Request, now: float) -> None:
        self.waiting.add(request)

    def revise(self, request: Request, now: float) -> None:
        self.waiting.revise(request)

    def hand_back(self, requests: Sequence[Request], cause: Cause, now: float) -> None:
        for request in requests:
            self.waiting.add(request)

    def discard(self, request: Request) -> bool:
        return self.waiting.discard(request)

    def wake_at(self, now: float) -> float | None:
        return None

    def take(self, worker: Worker, now: float) -> Plan | None:
        if not self.waiting:
            return None
        seen = worker.as_seen_by(self.waiting.best_class(now))
        slots = self._most_rows(worker, self._kit.limits) - seen.rows
        if slots <= 0 or not self._kit.memory(seen, 1, 1):  # nobody could join, so nobody need be ranked
            return None
        group = similar_group(self.waiting.first(seen, now, slots), seen, self._kit)
        for request in group:
            self.waiting.serve(request)
        return Plan(group, self._kit.terms, self._kit.returns) if group else None


def _without_waiting_rooms(kit: Kit) -> Kit:
    """Rows that enter with their prompts cannot wait in the executor, and are not read as a padded group."""
    return replace(kit, limits=replace(kit.limits, prefill_ahead=0, max_padding=1.0))


def similar_group(ranked: Iterable[Request], worker: Worker, kit: Kit) -> tuple[Request, ...]:
    """The best-ranked request, and after it in rank those that suit it in length and fit in memory.

    The best one is never passed over: when it does not fit, nothing is taken, so no long request starves.
    """
    group: list[Request] = []
    for request in ranked:
        larger = (*group, request)
        if not kit.memory(worker, len(larger), max(kit.memory.length(one) for one in larger)):
            break
        if not group or _similar([one.kv_length for one in larger], kit.limits):
            group.append(request)
    return tuple(group)


def _similar(lengths: list[int], limits: Limits) -> bool:
    cells = len(lengths) * max(lengths)
    return cells <= limits.group_tokens and cells - sum(lengths) <= limits.max_padding * cells
