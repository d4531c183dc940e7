"""The loop that decides: arrivals and reports come in, commands go out. It runs on the event loop and owns every
request from arrival to end. The strategy's parts decide; there is no branch on a strategy here. Where each request is
stands in the request table.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import chain, takewhile
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from engine.messages import ExecutorDied, ExecutorHealth, Pause, Report, SamplingParams, StepReport, Stop
from scheduler.assembly import Parts
from scheduler.batching.preemption import Preemption
from scheduler.clock import Clock, earlier
from scheduler.deadlines import Deadlines
from scheduler.observers import RequestObserver, RequestObservers
from scheduler.request import Failure, Refused, Request, State, Times, TooLate
from scheduler.request_table import RequestTable
from scheduler.routing import NodeLoad
from scheduler.wait_estimate.expected_wait import FRESH
from scheduler.wait_estimate.explanation import Explanation, find_reason
from scheduler.waiting.ranked import CountingQueue
from scheduler.worker import Port, Worker

if TYPE_CHECKING:
    from scheduler.length.distribution import LengthDistribution

log = logging.getLogger(__name__)

KeptPrefix: TypeAlias = Callable[[Sequence[int], str], int]
"""Tokens of a prompt, of a scope, whose K and V are kept from earlier ones."""

NO_ROW = -1
"""Number of a request that is not taken in."""


def _keep_nothing(prompt: Sequence[int], scope: str) -> int:
    return 0


class Dispatcher:
    """All methods belong to the event loop's thread."""

    def __init__(
        self,
        parts: Parts,
        ports: Sequence[Port],
        clock: Clock,
        observer: RequestObserver = RequestObservers(()),  # noqa: B008 - frozen
        kept_prefix: KeptPrefix = _keep_nothing,
    ) -> None:
        self._parts = parts
        self._clock = clock
        self._kept_prefix = kept_prefix
        self._table = RequestTable(parts.batcher, ports, clock, plan_observer=parts.observer, request_observer=observer)
        self._deadlines = Deadlines()
        self._row_ids = itertools.count()
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._dead = asyncio.Event()
        self._draining = False
        self._broken = False
        self._load = NodeLoad(-inf, 0.0, parts.prices())

    @property
    def requests_queued(self) -> int:
        """Requests that no executor has."""
        return len(self._table.waiting)

    @property
    def requests_waiting(self) -> int:
        """Requests that are queued, or that an executor has and has not begun."""
        return self.requests_queued + len(self.not_begun)

    @property
    def requests_running(self) -> int:
        """Requests that an executor has begun, in whatever stage."""
        return self._table.held - len(self.not_begun)

    @property
    def tokens_waiting(self) -> int:
        """Tokens of the requests that no executor has: prompt, generated, and expected to come."""
        return self._table.queued_tokens.total

    @property
    def free_slots(self) -> int:
        """Requests that would not have to wait if they came now."""
        return self._table.expected_wait.free_slots

    @property
    def alive(self) -> bool:
        """Whether requests can still be served."""
        return not self._broken and bool(self._table.serving())

    @property
    def waiting(self) -> Collection[Request]:
        """Requests that no executor has, in no particular order. To be read only."""
        return self._table.waiting

    @property
    def not_begun(self) -> Collection[Request]:
        """Requests that executors have and have not begun."""
        return self._table.not_begun

    @property
    def workers(self) -> Collection[Worker]:
        """The executors and what each holds, lost ones too. To be read only."""
        return self._table.workers.values()

    def now(self) -> float:
        """Seconds of the clock by which arrivals and deadlines are given."""
        return self._clock.now()

    def place(self, request: Request) -> int | None:
        """How many requests are ahead in the queue, by the order; None when this one does not wait."""
        return self._table.expected_wait.place(request, self._clock.now())

    def expected_wait(self, request: Request) -> float | None:
        """Seconds until a request starts; None when it does not wait, or when nothing has been measured yet."""
        return self._table.expected_wait.wait(request, self._clock.now())

    def explain(self, request: Request) -> Explanation | None:
        """Why a request waits in the queue; None when it does not. Takes as long as it has requests ahead."""
        if self.place(request) is None:
            return None
        batcher = self._parts.batcher
        ahead = tuple(takewhile(lambda one: one is not request, batcher.ranked(self._clock.now())))
        reasons = Counter(find_reason(one, request) for one in ahead)
        known = batcher.waiting.passed_for(request) if isinstance(batcher.waiting, CountingQueue) else None
        passed_for = None if known is None else known / max(1, len(self._table.serving()))
        return Explanation(self._parts.strategy, ahead, reasons, passed_for)

    def retry_after(self) -> float:
        """Seconds, 1 at least, until all waiting requests have started: when a refused client should come back."""
        return max(1.0, self.newcomer_wait() or 0.0)

    def newcomer_wait(self) -> float | None:
        """Seconds until a request that came now, last in the queue, would start; None when nothing has been measured
        yet."""
        return self._table.expected_wait.newcomer_wait(self._clock.now())

    def load(self) -> NodeLoad:
        """What a router shall know of this server: as it is now, or was a moment ago, since many may ask."""
        now, expected, workers = self._clock.now(), self._table.expected_wait, self._table.live()
        if now - self._load.at >= FRESH:
            prices = self._parts.prices()
            prices = replace(prices, unit=prices.unit / max(1, len(workers)))
            held = (request for worker in workers for request in worker.requests.values())
            work = prices.unit * expected.work(chain(self.waiting, held), prices)
            self._load = NodeLoad(now, work, prices, expected.mean_length)
        return self._load

    @property
    def kv_usage(self) -> float:
        """Part of the cells of K and V of all executors that their batches take."""
        capacity = sum(worker.capacity_tokens for worker in self._table.live())
        return sum(worker.used_tokens for worker in self._table.live()) / capacity if capacity else 0.0

    def held_by(self, executor: int) -> int:
        """Number of requests that an executor holds; 0 once it is lost."""
        return self._table.workers[executor].rows

    def submit(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        deadline: float | None = None,
        first_token_by: float | None = None,
        seconds_per_token: float | None = None,
        client: str = "",
        predicted_length: float | None = None,
        distribution: LengthDistribution | None = None,
        arrival: float | None = None,
        cache_scope: str = "",
    ) -> Request:
        """Take a request in; its answer comes through `request.stream`. Raises Refused, and TooLate for its deadlines.

        `arrival` is when it came, in seconds of the clock; None for now. `first_token_by` is the latest moment for its
        first token, `seconds_per_token` how far apart the others may be.
        """
        if not self.alive:
            raise self._refusal()
        if self._draining:
            raise Refused("the server is shutting down")
        request = self.estimate(
            prompt,
            sampling,
            priority=priority,
            client=client,
            predicted_length=predicted_length,
            distribution=distribution,
            cache_scope=cache_scope,
        )
        request.row_id, request.deadline, request.first_token_by = next(self._row_ids), deadline, first_token_by
        request.times.arrival = request.times.arrival if arrival is None else arrival
        self._table.queue(request)
        self._wake.set()
        if not self._can_meet(request, seconds_per_token):
            self._table.refuse(request)
            raise TooLate
        self._empty.clear()
        self._deadlines.add(request)
        return request

    def estimate(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        client: str = "",
        predicted_length: float | None = None,
        distribution: LengthDistribution | None = None,
        cache_scope: str = "",
    ) -> Request:
        """The request as it would be, with what is expected of it, had it come now; it is not taken in."""
        now = self._clock.now()
        request = Request(NO_ROW, tuple(prompt), sampling, Times(arrival=now), priority, client=client)
        request.predicted_length, request.distribution = predicted_length, distribution
        request.cache_scope, request.cached_prompt = cache_scope, self._kept_prefix(request.prompt, cache_scope)
        request.expected = self._table.expected_wait.expect(request, now)
        return request

    def revise(
        self, request: Request, predicted_length: float | None, distribution: LengthDistribution | None = None
    ) -> None:
        """Give a request a better prediction of its answer's length, wherever the request is by now."""
        request.predicted_length, request.distribution = predicted_length, distribution
        if request.state is not State.WAITING:
            return
        try:
            self._table.revise(request)
        except Exception:
            self._break_down()
        self._wake.set()

    def cancel(self, request: Request) -> None:
        """End a request without an answer. Safe at any time, also after its end."""
        if not request.state.is_final:
            self._table.withdraw(request)
            self._table.end(request, State.CANCELLED, None)
            self._changed()

    def receive(self, report: Report) -> None:
        """Apply an executor's report."""
        match report:
            case StepReport():
                if self._parts.steps is not None:
                    self._parts.steps.receive(report, self._clock.now())
                self._table.record(report)
            case ExecutorDied(executor, error, salvaged):
                self._table.remove_executor(executor, error, set(salvaged))
                if not self._table.live():
                    self._dead.set()
            case ExecutorHealth(executor, fault):
                self._table.workers[executor].fault = fault
        self._changed()

    async def run(self) -> None:
        """Dispatch until cancelled or broken: on an arrival, a report, or when the batcher asked to be woken."""
        while True:
            await self._clock.wait(self._wake, self.wake_at())
            self._wake.clear()
            try:
                self.dispatch()
            except Exception:
                self._break_down()
                return

    def wake_at(self) -> float | None:
        """The moment at which `dispatch` may decide otherwise though nothing has happened; None for never."""
        return earlier(self._parts.batcher.wake_at(self._clock.now()), self._deadlines.next())

    def dispatch(self) -> None:
        """Hand out plans until no executor can be given more."""
        self._expire(self._clock.now())
        while any(self._assign(worker) for worker in self._parts.placement(self._table.serving())):
            pass
        if self._parts.preemption is not None and self._table.waiting:
            self._preempt(self._parts.preemption)
        self._table.expected_wait.dispatched(self._clock.now())

    def give_up(self, executor: int, error: str) -> None:
        """Treat an executor that stands still as dead. Should it ever go on, its reports are ignored, and it ends."""
        self.receive(ExecutorDied(executor, error))
        self._table.workers[executor].port.post(Stop())

    async def death(self) -> None:
        """Return when no request can be served any more."""
        await self._dead.wait()

    async def drain(self) -> None:
        """Refuse new requests, and return when the last one has ended."""
        self._draining = True
        await self._empty.wait()

    def abort_all(self, message: str, failure: Failure = Failure.SHUTDOWN) -> None:
        """End every request with an error, and take no more."""
        self._draining = True
        held = [request for worker in self._table.workers.values() for request in worker.requests.values()]
        for request in (*held, *self._table.waiting):
            self._table.withdraw(request)
            if not request.state.is_final:  # as it is when it was the last that its batch waited for
                self._table.fail(request, message, failure)
        self._changed()

    def _changed(self) -> None:
        """Wake the loop, since requests may have ended and slots be free."""
        self._wake.set()
        if not self._table.waiting and not self._table.held:
            self._empty.set()

    def _break_down(self) -> None:
        """Abort all requests after a fault in a strategy's part: nothing will be dispatched any more."""
        log.exception("the dispatcher failed")
        self._broken = True
        self.abort_all("the scheduler failed", Failure.SCHEDULER)
        self._dead.set()

    def _can_meet(self, request: Request, seconds_per_token: float | None) -> bool:
        """Whether a waiting request may meet its deadlines; true where that cannot be estimated."""
        now, expected = self._clock.now(), self._table.expected_wait
        bounds = (
            (request.deadline, expected.latency),
            (request.first_token_by, expected.wait),
            (None if seconds_per_token is None else now + seconds_per_token, expected.seconds_per_token),
        )
        return all(by is None or (now < by and now + (told(request, now) or 0.0) <= by) for by, told in bounds)

    def _expire(self, now: float) -> None:
        """Fail the requests that have waited past their deadline."""
        for request in self._deadlines.passed(now):
            self._table.withdraw(request)
            self._table.fail(request, "the deadline passed while the request waited", Failure.DEADLINE)
            self._changed()

    def _refusal(self) -> Refused:
        if self._broken:
            return Refused("the scheduler failed", Failure.SCHEDULER)
        return Refused("no executor is alive", Failure.EXECUTOR)

    def _assign(self, worker: Worker) -> bool:
        """Give one executor one plan; False when there is none for it."""
        plan = self._parts.batcher.take(worker, self._clock.now())
        if plan is None:
            return False
        self._table.assign(plan, worker)
        worker.port.post(plan.command)
        return True

    def _preempt(self, preemption: Preemption) -> None:
        """Ask executors to hand back rows whose slots waiting requests shall have."""
        now = self._clock.now()
        pauses = preemption(self._table.serving(), self._parts.batcher.ranked(now), now)
        for index, row_ids in pauses.items():
            self._table.workers[index].pausing.update(row_ids)
            self._table.workers[index].port.post(Pause(row_ids))
