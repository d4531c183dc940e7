"""Which waiting requests go to an executor together, and when. Pure decisions: time is passed in, nothing is sent.

A batcher owns the arrangement of waiting requests, since the papers differ in when they arrange: on arrival (Magnus),
at intervals (SCLS), or when a slot frees (Baton). This file says what all batchers do and what they are made of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from engine.messages import MOST_PADDING, NO_LENGTH, Cause, RowId, Terms
from models.errors import StrategyError
from scheduler.batching.memory import Memory
from scheduler.options import Scheduling
from scheduler.plan import Plan, Returns, Worker
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear, ServingTime
from scheduler.serving_time.machine import MachineModel
from scheduler.waiting.by_length import Aging
from scheduler.waiting.fair import Shares
from scheduler.waiting.prices import PricesNow, usual_rows
from scheduler.waiting.queue import Keys, Order
from scheduler.waiting.ranked import RankedQueue


@dataclass(frozen=True, slots=True)
class Limits:
    """The options that batchers go by, and the sizes of the executors."""

    group_tokens: int
    """Most prompt tokens, padding included, to prefill as one group; one longer prompt may go alone."""
    prefill_ahead: int
    """Rows an executor may hold beyond its slots, prefilled and waiting for one."""
    options: Scheduling = Scheduling()
    max_padding: float = MOST_PADDING
    """Most padding in a prefill group, as a fraction of its cells: what "similar length" means."""
    seconds_per_token: float = Aging().seconds_per_token
    """Seconds of a decode iteration by the device's profile. They stay: keys of a sorted queue must not change unless
    the order says when."""
    capacity_tokens: int | None = None
    """Tokens of K and V that the smallest executor holds; None before an executor asks for work."""
    context_length: int | None = None
    """Least of the executors' longest rows, prompt and answer, in tokens; None before an executor asks for work."""
    slots: int | None = None
    """Least of the executors' slots; None before an executor asks for work."""
    shares: Shares | None = None
    """Weights of clients, between whom service is shared out; None: they are not told apart."""

    @property
    def usual_rows(self) -> float:
        """Rows that an executor runs at a time, if they are half as long as they may become."""
        return usual_rows(self.slots, self.capacity_tokens, self.context_length)

    @property
    def aging(self) -> Aging:
        """When waiting requests are promoted, for orders that promote, and when they are due by their deadline."""
        return Aging(self.options.aging_factor, self.seconds_per_token)

    @classmethod
    def of(cls, options: Scheduling, group_tokens: int, max_num_seqs: int) -> Limits:
        """Limits on executors with so many slots, which prefill so many tokens as one group."""
        ahead = options.prefill_ahead
        return cls(group_tokens, max(1, max_num_seqs // 8) if ahead is None else ahead, options)

    def within(self, capacity_tokens: int, context_length: int, slots: int) -> Limits:
        """These limits for one more executor, which may be smaller than those before."""
        return replace(
            self,
            capacity_tokens=min(capacity_tokens, self.capacity_tokens or capacity_tokens),
            context_length=min(context_length, self.context_length or context_length),
            slots=min(slots, self.slots or slots),
        )

    def timed(self, model: Bilinear | None) -> Limits:
        """These limits with what an iteration takes, by a model where there is one, when rows of half the longest
        length take all slots."""
        rows = self.slots or 1
        columns = min(self.context_length or 0, (self.capacity_tokens or 0) / rows) / 2
        return self if model is None else replace(self, seconds_per_token=model.iteration(float(rows), columns))


Pauses: TypeAlias = Mapping[int, Sequence[RowId]]
"""Index of an executor -> the rows that it shall hand back."""


@dataclass(frozen=True, slots=True)
class Kit:
    """The parts that a batcher is made of: the other columns of its strategy's row."""

    new_queue: Callable[[], RankedQueue]
    """Makes a queue for requests that wait."""
    memory: Memory
    limits: Limits
    terms: Terms
    returns: Returns
    machine: MachineModel = field(default_factory=MachineModel)
    """The one bilinear model of this machine, as far as it is known."""
    estimator: ServingTime | None = None
    """Estimates of batches in the way of the strategy; None where they are not asked for."""
    preemption: float | None = None
    """Part of its predicted length up to which a row makes way for what the order ranks before it; None: never."""

    def new_keys(self) -> Keys:
        """The keys of the strategy's order, by which requests are compared outside of a queue.

        Raises StrategyError for an order whose keys compare no such requests.
        """
        queue = self.new_queue()
        if not queue.order.by_key or queue.order.by_entry:
            raise StrategyError("its batching or preemption compares keys, which its order has only within a queue")
        return queue.key

    def plan(self, requests: Sequence[Request], seconds: float = 0.0) -> Plan:
        """A plan for these requests, on the strategy's terms."""
        terms = self.terms  # whose rows keep all K and V in host memory when they are handed back
        if self.limits.options.recompute:
            terms = replace(terms, keep_kv=NO_LENGTH)
        elif self.machine.model is not None:
            terms = replace(terms, keep_kv=self.machine.model.kept_lengths())
        return Plan(tuple(requests), terms, self.returns, seconds)


class Batcher(ABC):
    """Holds what waits and hands it out as plans."""

    def __init__(self, kit: Kit, waiting: RankedQueue | None = None) -> None:
        """`waiting` ranks requests as far as that does not depend on the executor that asks; None: by the order."""
        self._kit = kit
        self.waiting = kit.new_queue() if waiting is None else waiting
        """Requests that wait here."""

    def add(self, request: Request, now: float) -> None:
        """Take in a request that arrived."""
        self.waiting.add(request)

    def revise(self, request: Request, now: float) -> None:
        """Note that a request's prediction has changed; it need not wait here."""
        self.waiting.revise(request)

    def hand_back(self, requests: Sequence[Request], cause: Cause, now: float) -> None:
        """Take in requests that an executor let go before their end, all of one batch."""
        for request in requests:
            self.add(request, now)

    def preempt(self, workers: Sequence[Worker], now: float) -> Pauses:
        """The rows that shall make way for what waits; asked once no executor takes more."""
        return {}

    def discard(self, request: Request) -> bool:
        """Forget a request; False when it does not wait here."""
        return self.waiting.discard(request)

    @abstractmethod
    def take(self, worker: Worker, now: float) -> Plan | None:
        """The plan for this executor now, whose requests leave the queue; None when the executor must wait."""

    def wake_at(self, now: float) -> float | None:
        """The moment at which `take` may decide otherwise though nothing has happened; None for never."""
        return None

    def _serve(self, requests: Sequence[Request]) -> Plan | None:
        """Take requests out as a plan; None where there are none."""
        for request in requests:
            self.waiting.serve(request)
        return self._kit.plan(requests) if requests else None


BatcherFactory: TypeAlias = Callable[[Kit], Batcher]
OrderFactory: TypeAlias = Callable[[Limits, PricesNow], Order]
