"""The loop that decides: arrivals and reports come in, commands go out. It runs on the event loop and owns every
request from arrival to end. The strategy's parts decide; there is no branch on a strategy here. Where each request is
stands in the request table.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypedDict, Unpack

from engine.messages import ExecutorDied, ExecutorHealth, Pause, Report, StepReport, Stop
from engine.sampling.params import SamplingParams
from scheduler.assembly import Parts
from scheduler.clock import Clock, earliest
from scheduler.plan import Port, RequestObserver, Worker
from scheduler.request import Failure, Refused, Request, State, Times, TooLate
from scheduler.request_table import RequestTable
from scheduler.stream import TokenStream, Wakeups
from scheduler.waiting.ranked import Deadlines

if TYPE_CHECKING:
    from scheduler.length.prediction import LengthDistribution

log = logging.getLogger(__name__)


KeptPrefix: TypeAlias = Callable[[Sequence[int], str], int]
"""Tokens of a prompt, of a scope, whose K and V are kept from earlier ones."""

NO_ROW = 2**63 - 1
"""Number of a request that is not taken in: after all that came at the same moment."""


class Known(TypedDict, total=False):
    """What may be known of a request that comes: fields of Request, with its defaults."""

    priority: int
    client: str
    deadline: float | None
    predicted_length: float | None
    distribution: LengthDistribution | None
    cache_scope: str
    prompt_cache_key: str


class Dispatcher:
    """All methods belong to the event loop's thread."""

    def __init__(
        self,
        parts: Parts,
        ports: Sequence[Port],
        clock: Clock,
        observers: Sequence[RequestObserver] = (),
        kept_prefix: KeptPrefix | None = None,
        patient: bool = False,
    ) -> None:
        """`patient`: whether requests wait while every executor has a fault."""
        self._parts = parts
        self._clock = clock
        self._kept_prefix = kept_prefix
        self.table = RequestTable(parts, ports, clock, observers)
        """The requests, by where they are. To be read only, as the next three."""
        self.waits = self.table.waits
        self.waiting = self.table.waiting
        self.workers: Collection[Worker] = self.table.workers.values()
        self.now = clock.now
        """Tells the seconds of the clock by which arrivals and deadlines are given."""
        self._deadlines = Deadlines()
        self._wakeups = Wakeups()
        self._row_ids = itertools.count()
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._dead = asyncio.Event()
        self._draining = False
        self._broken = False
        self._patient = patient

    @property
    def alive(self) -> bool:
        """Whether requests can still be served."""
        return not self._broken and bool(self.table.serving())

    @property
    def accepts(self) -> bool:
        """Whether requests are taken, even if they must wait until an executor's fault has passed."""
        return not self._broken and bool(self.table.live() if self._patient else self.table.serving())

    def submit(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        arrival: float | None = None,
        **known: Unpack[Known],
    ) -> Request:
        """Take a request in; its answer comes through `request.stream`. Raises Refused, and TooLate for its deadline.

        `arrival` is when it came, in seconds of the clock; None for now.
        """
        if self._broken:
            raise Refused("the scheduler failed", Failure.SCHEDULER)
        if not self.accepts:
            raise Refused("no executor is alive", Failure.EXECUTOR)
        if self._draining:
            raise Refused("the server is shutting down")
        request = self.estimate(prompt, sampling, **known)
        if not self._can_meet(request):
            raise TooLate
        request.row_id = next(self._row_ids)
        request.stream = TokenStream(self._wakeups)
        request.times.arrival = request.times.arrival if arrival is None else arrival
        self.table.queue(request)
        self._wake.set()
        self._empty.clear()
        self._deadlines.add(request)
        return request

    def estimate(self, prompt: Sequence[int], sampling: SamplingParams, **known: Unpack[Known]) -> Request:
        """The request as it would be, with what is expected of it, had it come now; it is not taken in."""
        request = Request(NO_ROW, tuple(prompt), sampling, Times(arrival=self.now()), **known)
        request.correction = self.table.correct(request)
        if self._kept_prefix is not None:
            request.cached_prompt = self._kept_prefix(request.prompt, request.cache_scope)
        request.expected = self.waits.expect(request)
        return request

    def revise(
        self, request: Request, predicted_length: float | None, distribution: LengthDistribution | None = None
    ) -> None:
        """Give a request a better prediction of its answer's length, wherever the request is by now."""
        request.predicted_length, request.distribution = predicted_length, distribution
        request.correction = self.table.correct(request)
        if request.state.is_final:
            return
        try:
            self.table.revise(request)
        except Exception:
            self._break_down()
        self._wake.set()

    def cancel(self, request: Request) -> None:
        """End a request without an answer. Safe at any time, also after its end."""
        if not request.state.is_final:
            self.table.withdraw(request)
            self.table.end(request, State.CANCELLED, None)
            self._changed()

    def receive(self, report: Report) -> None:
        """Apply an executor's report."""
        match report:
            case StepReport():
                self.table.record(report)
            case ExecutorDied(executor, error, salvaged):
                self.table.remove_executor(executor, error, set(salvaged))
            case ExecutorHealth(executor, fault):
                self.table.workers[executor].fault = fault
        self._changed()
        if (steps := self._parts.estimates.steps) is not None and isinstance(report, StepReport):
            steps.receive(report, self.now())  # last: no answer hangs on what is learned

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
        return earliest(self._parts.batcher.wake_at(self.now()), self._deadlines.next())

    def dispatch(self) -> None:
        """Fail what has waited past its deadline, hand out plans until no executor can be given more, and ask executors
        to hand back rows that shall make way."""
        for request in self._deadlines.passed(self.now()):
            self.table.withdraw(request)
            self.table.fail(request, "the deadline passed while the request waited", Failure.DEADLINE)
            self._changed()
        while any(self._assign(worker) for worker in self._parts.placement(self.table.serving())):
            pass
        for index, row_ids in self._parts.batcher.preempt(self.table.serving(), self.now()).items():
            self.table.workers[index].pausing.update(row_ids)
            self.table.post(self.table.workers[index], Pause(tuple(row_ids)))
        if not self.table.live() and not self._dead.is_set():  # the last executor took no command
            self._changed()
        self.waits.dispatched(stuck=self.table.requests_in_line > 0)

    def held_by(self, executor: int) -> int:
        """Number of requests that an executor holds; 0 once it is lost."""
        return self.table.workers[executor].rows

    def give_up(self, executor: int, error: str) -> None:
        """Treat an executor that stands still as dead. Should it ever go on, its reports are ignored, and it ends."""
        self.receive(ExecutorDied(executor, error))
        self.table.post(self.table.workers[executor], Stop())

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
        for request in (*self.table.held, *self.waiting):
            self.table.withdraw(request)
            if not request.state.is_final:  # as it is when it was the last that its batch waited for
                self.table.fail(request, message, failure)
        self._changed()

    def _changed(self) -> None:
        """Wake the loop, since requests may have ended and slots be free."""
        self._wake.set()
        if not self.table.live():
            self._dead.set()
        if not self.waiting and not self.table.held:
            self._empty.set()

    def _break_down(self) -> None:
        """Abort all requests after a fault in a strategy's part: nothing will be dispatched any more."""
        log.exception("the dispatcher failed")
        self._broken = True
        self.abort_all("the scheduler failed", Failure.SCHEDULER)
        self._dead.set()

    def _can_meet(self, request: Request) -> bool:
        """Whether a request that comes may meet its deadline; true where that cannot be estimated, as while executors
        have nothing to do: what was measured under load tells little of that."""
        now, by, expected = self.now(), request.deadline, request.expected
        if by is None or expected is None:
            return True
        seconds = expected.point if self.table.held or expected.place else 0.0
        return now < by and now + seconds <= by

    def _assign(self, worker: Worker) -> bool:
        """Give one executor one plan; False when there is none for it."""
        plan = self._parts.batcher.take(worker, self.now())
        if plan is None:
            return False
        self.table.assign(plan, worker)
        self.table.post(worker, plan.command)
        return True
