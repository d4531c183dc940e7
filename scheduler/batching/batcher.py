"""Batchers: which waiting requests an executor gets together, and when, on arrival (Magnus), at intervals (SCLS), or
when a slot frees (Baton).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.messages import MOST_PADDING, NEVER, BatchPolicy, Cause, RowId
from models.errors import StrategyError
from scheduler.batching.memory import Memory
from scheduler.options import Scheduling
from scheduler.plan import Plan, Returns
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear, ServingTime, kept_from
from scheduler.serving_time.machine import MachineModel
from scheduler.waiting.by_length import Aging
from scheduler.waiting.fair import Shares
from scheduler.waiting.order import Order
from scheduler.waiting.prices import PricesNow, usual_rows
from scheduler.waiting.queue import RankedQueue
from scheduler.waiting.sorted_requests import Keys
from scheduler.worker import Worker


@dataclass(frozen=True, slots=True)
class BatchLimits:
    group_tokens: int  # cells; a longer prompt goes alone
    prefill_ahead: int  # rows
    options: Scheduling = Scheduling()
    max_padding: float = MOST_PADDING
    # of a decode step; fixed, as queue keys must not change
    seconds_per_token: float = Aging().seconds_per_token
    capacity_tokens: int | None = None  # of the smallest executor; None before one asks
    context_length: int | None = None  # least longest row
    slots: int | None = None  # least
    shares: Shares | None = None  # None: not fair

    @property
    def usual_rows(self) -> float:
        """At half their longest."""
        return usual_rows(self.slots, self.capacity_tokens, self.context_length)

    @property
    def aging(self) -> Aging:
        return Aging(self.options.aging_factor, self.seconds_per_token)

    @classmethod
    def of(cls, options: Scheduling, group_tokens: int, max_num_seqs: int) -> BatchLimits:
        ahead = options.prefill_ahead
        return cls(group_tokens, max(1, max_num_seqs // 8) if ahead is None else ahead, options)

    def within(self, capacity_tokens: int, context_length: int, slots: int) -> BatchLimits:
        """Including one more executor."""
        return replace(
            self,
            capacity_tokens=min(capacity_tokens, self.capacity_tokens or capacity_tokens),
            context_length=min(context_length, self.context_length or context_length),
            slots=min(slots, self.slots or slots),
        )

    def timed(self, model: Bilinear | None) -> BatchLimits:
        """Seconds by a model, all slots at half the longest length."""
        rows = self.slots or 1
        columns = min(self.context_length or 0, (self.capacity_tokens or 0) / rows) / 2
        return self if model is None else replace(self, seconds_per_token=model.iteration(float(rows), columns))


Pauses = Mapping[int, Sequence[RowId]]  # by executor


@dataclass(frozen=True, slots=True)
class BatcherParts:
    new_queue: Callable[[], RankedQueue]
    memory: Memory
    limits: BatchLimits
    terms: BatchPolicy
    returns: Returns
    machine: MachineModel = field(default_factory=MachineModel)
    estimator: ServingTime | None = None  # None where unused
    preemption: float | None = None  # progress up to which rows are preempted; None: never

    def new_keys(self) -> Keys:
        """Raises StrategyError where keys hold only within a queue."""
        queue = self.new_queue()
        if not queue.order.by_key or queue.order.by_entry:
            raise StrategyError("its batching or preemption compares keys, which its order has only within a queue")
        return queue.key

    def plan(self, requests: Sequence[Request], seconds: float = 0.0) -> Plan:
        terms = self.terms  # rows handed back keep their KV caches
        if self.limits.options.recompute:
            terms = replace(terms, kept_from=NEVER)
        elif self.machine.model is not None:
            terms = replace(terms, kept_from=kept_from(self.machine.model))
        return Plan(tuple(requests), terms, self.returns, seconds)


class Batcher(ABC):
    def __init__(self, kit: BatcherParts, waiting: RankedQueue | None = None) -> None:
        """`waiting`: rank regardless of the executor."""
        self._kit = kit
        self.waiting = kit.new_queue() if waiting is None else waiting

    def add(self, request: Request, now: float) -> None:
        self.waiting.add(request)

    def revise(self, request: Request, now: float) -> None:
        """Whether it waits or not."""
        self.waiting.revise(request)

    def hand_back(self, requests: Sequence[Request], cause: Cause, now: float) -> None:
        for request in requests:
            self.add(request, now)

    def preempt(self, workers: Sequence[Worker], now: float) -> Pauses:
        """Asked once no executor takes more."""
        return {}

    def discard(self, request: Request) -> bool:
        return self.waiting.discard(request)

    def ended(self, request: Request) -> None:
        self.waiting.order.ended(request)

    @abstractmethod
    def take(self, worker: Worker, now: float) -> Plan | None:
        """None: wait."""

    def wake_at(self, now: float) -> float | None:
        return None

    def _serve(self, requests: Sequence[Request]) -> Plan | None:
        for request in requests:
            self.waiting.serve(request)
        return self._kit.plan(requests) if requests else None


BatcherFactory = Callable[[BatcherParts], Batcher]
OrderFactory = Callable[[BatchLimits, PricesNow], Order]
