"""Which waiting requests go to an executor together, and when. Pure decisions: time is passed in, nothing is sent.

A batcher owns the arrangement of what waits, since the papers differ in when they arrange: on arrival (Magnus),
at intervals (SCLS), or when a slot frees (Baton).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Protocol, TypeAlias

from engine.messages import Admit
from scheduler.memory import Memory
from scheduler.order import Order
from scheduler.request import Request
from scheduler.waiting import WaitingQueue
from scheduler.worker import Worker


@dataclass(frozen=True, slots=True)
class Limits:
    """What batchers must respect."""

    group_tokens: int
    """Most prompt tokens, padding included, to prefill as one group; one longer prompt may go alone."""
    prefill_ahead: int
    """Rows an executor may hold beyond its slots, prefilled and waiting for one."""
    max_padding: float = 0.25
    """Most padding in a prefill group, as a fraction of its cells: what "similar length" means."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests to send to one executor together."""

    requests: tuple[Request, ...]

    @property
    def order(self) -> Admit:
        return Admit(tuple(request.spec for request in self.requests))


class Batcher(Protocol):
    """Holds what waits and hands it out as plans."""

    @property
    def waiting(self) -> WaitingQueue: ...

    def add(self, request: Request) -> None:
        """Take in a request that arrived, or came back."""
        ...

    def discard(self, request: Request) -> bool:
        """Forget a request; False when it does not wait here."""
        ...

    def take(self, worker: Worker, now: float) -> Plan | None:
        """What this executor shall be given now; the requests leave the queue. None when it must wait."""
        ...

    def wake_at(self, now: float) -> float | None:
        """When `take` may decide otherwise though nothing has happened; None for never."""
        ...


class JoinBatcher:
    """Requests join the running batch when a row leaves it, prefilled with others of similar length (Baton, 4.2)."""

    def __init__(self, order: Order, memory: Memory, limits: Limits) -> None:
        self.waiting = WaitingQueue(order)
        self._memory = memory
        self._limits = limits

    def add(self, request: Request) -> None:
        self.waiting.add(request)

    def discard(self, request: Request) -> bool:
        return self.waiting.discard(request)

    def wake_at(self, now: float) -> float | None:
        return None

    def take(self, worker: Worker, now: float) -> Plan | None:
        slots = worker.info.max_rows + self._limits.prefill_ahead - worker.rows
        if slots <= 0 or not self.waiting:
            return None
        self.waiting.rank(now)
        group = similar_group(islice(self.waiting, slots), worker, self._memory, self._limits)
        for request in group:
            self.waiting.discard(request)
        return Plan(group) if group else None


def similar_group(ranked: Iterable[Request], worker: Worker, memory: Memory, limits: Limits) -> tuple[Request, ...]:
    """The best-ranked request, and after it in rank those that suit it in length and fit in memory.

    The best one is never passed over: when it does not fit, nothing is taken, so no long request starves.
    """
    group: list[Request] = []
    for request in ranked:
        lengths = [other.input_length for other in (*group, request)]
        if not memory(worker, len(lengths), max(lengths)):
            break
        if not group or _similar(lengths, limits):
            group.append(request)
    return tuple(group)


def _similar(lengths: list[int], limits: Limits) -> bool:
    cells = len(lengths) * max(lengths)
    return cells <= limits.group_tokens and cells - sum(lengths) <= limits.max_padding * cells


BatcherFactory: TypeAlias = Callable[[Order, Memory, Limits], Batcher]

BATCHERS: Mapping[str, BatcherFactory] = MappingProxyType({"join": JoinBatcher})
