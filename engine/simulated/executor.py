"""An executor that takes the time a cost model says, on a clock that somebody else moves (design 7.4).

It takes the orders and gives the reports of a real one. Between two moments at which anything happens it computes
nothing, so simulated hours cost seconds. Knows no strategy, and moves no time itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from engine.messages import Admit, Cancel, Deliver, ExecutorInfo, Order, Pause, Stop
from engine.simulated.batch import SimulatedBatch
from engine.simulated.cost import Cost
from engine.simulated.outbox import Outbox
from engine.simulated.pipeline import SimulatedPipeline
from engine.simulated.store import SimulatedStore
from engine.simulated.work import Kind, Work

HEADROOM = 32
"""Columns that must stay free when a row joins others, as on a real device."""


@dataclass(slots=True)
class Usage:
    """What a simulated device has done so far, in seconds."""

    prefill: float = 0.0
    """Reading prompts, entries by shape among it."""
    decode: float = 0.0
    row_decode: float = 0.0
    """The sum of its rows' time in decode: divided by `decode`, the mean batch size."""
    last: float = 0.0
    """When it last finished anything, on the clock."""

    def book(self, work: Work, rows: int, now: float) -> None:
        self.last = now
        if work.kind is Kind.DECODE:
            self.decode += work.seconds
            self.row_decode += rows * work.seconds
        else:
            self.prefill += work.seconds


class SimulatedExecutor:
    """A port of the scheduler. Whoever owns the clock moves it to `due`, calls `advance`, and so on.

    Executors that share a store can go on with each other's rows.
    """

    def __init__(
        self,
        info: ExecutorInfo,
        cost: Cost,
        now: Callable[[], float],
        deliver: Deliver,
        *,
        store: SimulatedStore | None = None,
        max_prefill_tokens: int | None = None,
        headroom: int = HEADROOM,
    ) -> None:
        """`max_prefill_tokens`: cells of a chunk of prefill; None reads every group at once."""
        self.info = info
        self.alive = True
        self.due = math.inf
        """When it has something to do, on the clock; infinity: not before the next order."""
        self.usage = Usage()
        self._now = now
        self._deliver = deliver
        self._inbox: list[Order] = []
        batch = SimulatedBatch(info.capacity_tokens, info.max_rows, headroom)
        chunk = info.capacity_tokens * info.max_rows if max_prefill_tokens is None else max_prefill_tokens
        self._pipeline = SimulatedPipeline(batch, cost, SimulatedStore() if store is None else store, chunk)
        self._work: Work | None = None
        self._began = 0.0
        self._turns = 0

    def post(self, order: Order) -> None:
        """Leave an order; it is taken up before the next turn, and cuts short what is under way if it bears on it."""
        if not self.alive:
            return
        self._inbox.append(order)
        if self._work is None:
            self.due = self._now()
        elif not self._can_wait(order):
            self._work = self._work.cut(self._now() - self._began)
            self.due = max(self._now(), self._began + self._work.seconds)

    def withdraw(self) -> tuple[Order, ...]:
        """Take back the orders that have not been taken up."""
        orders, self._inbox = self._inbox, []
        return tuple(orders)

    def advance(self) -> None:
        """Do what is due: end the work under way, else take up orders and begin some."""
        if self._work is not None:
            self._end(self._work)
        else:
            self._begin()

    def check(self) -> None:
        """Assert that its books agree; for tests."""
        self._pipeline.check()

    def _can_wait(self, order: Order) -> bool:
        """Whether an order changes nothing before the work under way has ended anyway."""
        return isinstance(order, Admit) and order.terms.closed and self._pipeline.closed

    def _end(self, work: Work) -> None:
        now = self._now()
        self.usage.book(work, len(self._pipeline.batch), now)
        self._turns += work.iterations
        self._work = None
        self._pipeline.finish(work)
        self._report(work.seconds)
        self.due = math.inf if self._pipeline.idle and not self._inbox else now

    def _begin(self) -> None:
        self._take_orders()
        self._work = self._pipeline.begin() if self.alive else None
        self._began = self._now()
        self.due = math.inf if self._work is None else self._began + self._work.seconds
        self._report(0.0)

    def _take_orders(self) -> None:
        orders, self._inbox = self._inbox, []
        for order in orders:
            self._obey(order)

    def _obey(self, order: Order) -> None:
        match order:
            case Admit(rows, terms):
                self._pipeline.admit(rows, terms)
            case Pause(row_ids):
                self._pipeline.pause(row_ids)
            case Cancel(row_ids):
                self._pipeline.cancel(row_ids)
            case Stop():
                self.alive = False

    def _report(self, seconds: float) -> None:
        """Tell what there is to tell; mere figures wait until there is something else, or nothing left to do."""
        outbox = self._pipeline.outbox
        if outbox.urgent or (self._pipeline.idle and outbox.counted):
            self._pipeline.outbox = Outbox()
            self._deliver(outbox.report(self.info.index, self._turns, self._pipeline.shape(), seconds))
