"""The scheduling loop: arrivals and reports in, commands out."""

import asyncio
import itertools
import logging
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Unpack

from engine.messages import ExecutorDied, ExecutorHealth, Pause, Report, StepReport, Stop
from engine.sampling.params import SamplingParams
from scheduler.admission import Admission, KeptPrefix
from scheduler.assembly import SchedulerParts
from scheduler.clock import Clock, earliest
from scheduler.length.prediction import LengthDistribution
from scheduler.observers import RequestObserver
from scheduler.programs.program import Program
from scheduler.request import Failure, Refused, Request, State
from scheduler.request_table import RequestTable
from scheduler.stream import SLICE, TokenStream, Wakeups
from scheduler.submission import Known, Submission
from scheduler.waiting.deadlines import Deadlines
from scheduler.worker import Port, Worker

log = logging.getLogger(__name__)


class Dispatcher:
    """Event loop only."""

    def __init__(
        self,
        parts: SchedulerParts,
        ports: Sequence[Port],
        clock: Clock,
        observers: Sequence[RequestObserver] = (),
        kept_prefix: KeptPrefix | None = None,
        patient: bool = False,
    ) -> None:
        """`patient`: wait for executors with faults."""
        self._parts = parts
        self._clock = clock
        self._kept_prefix = kept_prefix
        self.table = RequestTable(parts, ports, clock, observers)  # read only
        self.waits = self.table.waits
        self.admission = Admission(self.table, clock.now, kept_prefix)
        self.waiting = self.table.waiting
        self.workers: Collection[Worker] = self.table.workers.values()
        self.now = clock.now
        self._deadlines = Deadlines()
        self._wakeups = Wakeups()
        self._leaving = Wakeups()
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
        return not self._broken and bool(self.table.serving())

    @property
    def accepts(self) -> bool:
        """Even if they must wait."""
        return not self._broken and bool(self.table.live() if self._patient else self.table.serving())

    def submit(
        self, prompt: Sequence[int], sampling: SamplingParams, *, arrival: float | None = None, **known: Unpack[Known]
    ) -> Request:
        return self.submit_all([(prompt, sampling, known)], arrival=arrival)[0]

    def submit_all(
        self, answers: Iterable[Submission], *, arrival: float | None = None, since: float | None = None
    ) -> list[Request]:
        """A call's, or none: raises Refused, TooLate and Unpromised. `since`: place, default `arrival`, default now."""
        if self._broken:
            raise Refused("the scheduler failed", Failure.SCHEDULER)
        if not self.accepts:
            raise Refused("no executor is alive", Failure.EXECUTOR)
        if self._draining:
            raise Refused("the server is shutting down")
        requests = self.admission.estimate_all(answers, since=since)
        self.admission.promise_all(requests)
        for request in requests:
            self._queue(request, arrival, since)
        return requests

    def _queue(self, request: Request, arrival: float | None, since: float | None) -> None:
        request.row_id = next(self._row_ids)
        request.stream = TokenStream(self._wakeups)
        request.times.came = request.times.came if arrival is None else arrival
        request.times.arrival = request.times.came if since is None else since
        if request.program is not None:
            self._begin_turn(request, request.program)
        self.table.queue(request)
        self._wake.set()
        self._empty.clear()
        self._deadlines.add(request)
        self.waits.promise(request)

    def _begin_turn(self, request: Request, program: Program) -> None:
        if len(self.workers) > 1:
            request.prompt_cache_key = request.prompt_cache_key or program.name
        kept, expected = self._kept_prefix, request.expected
        if request.cached_prompt and kept is not None and expected is not None and program.ended is not None:
            waits_until = request.times.came + expected.high
            if waits_until > program.ended + program.back_within:  # else it stays until then
                kept(request.prompt, request.cache_scope, expected.high)
        program.begin(request.times.came)

    def revise(self, request: Request, length: float | None, distribution: LengthDistribution | None = None) -> None:
        request.predicted_length, request.distribution = length, distribution
        request.correction = self.table.correct(request)
        if request.state.is_final:
            return
        try:
            self.table.revise(request)
        except Exception:
            self._break_down()
        self._wake.set()

    def cancel(self, request: Request) -> None:
        """Idempotent."""
        if not request.state.is_final:
            self.table.cancel(request)
            self.table.end(request, State.CANCELLED, None)
            self._changed()

    def fail(self, request: Request, message: str, failure: Failure) -> None:
        """Idempotent."""
        if not request.state.is_final:
            self._fail(request, message, failure)
            self._changed()

    async def cancel_all(self, requests: Iterable[Request]) -> None:
        """In slices of the event loop's time that all callers share; at once where this is cancelled meanwhile."""
        *left, last = [one for one in requests if not one.state.is_final] or (None,)
        if last is None:
            return
        done = asyncio.get_running_loop().create_future()
        try:
            for request in left:
                self._leaving.add(partial(self._let_go, request))
            self._leaving.add(partial(self._let_go, last, done))
            await done
        finally:
            for request in (*left, last):
                self.cancel(request)

    def _let_go(self, request: Request, done: asyncio.Future[None] | None = None) -> asyncio.Future[None] | None:
        try:
            self.cancel(request)
        except Exception:
            self._break_down()
        return done

    def receive(self, report: Report) -> None:
        match report:
            case StepReport():
                self._wakeups.made = report.made
                self.table.record(report)
                # else no slot has become free, and nothing wants one
                if self.waiting or report.handed_back or any(one.finish_reason for one in report.updates):
                    self._changed()
                if (steps := self._parts.estimates.steps) is not None:
                    steps.receive(report, self.now())  # last: no answer depends on it
                return
            case ExecutorDied(executor, error, salvaged):
                self.table.remove_executor(executor, error, set(salvaged))
            case ExecutorHealth(executor, fault):
                self.table.workers[executor].fault = fault
        self._changed()

    async def run(self) -> None:
        while True:
            await self._clock.wait(self._wake, self.wake_at())
            self._wake.clear()
            try:
                self.dispatch()
            except Exception:
                self._break_down()
                return
            if self._wake.is_set():
                await asyncio.sleep(0)

    def wake_at(self) -> float | None:
        return earliest(self._parts.batcher.wake_at(self.now()), self._deadlines.next())

    def dispatch(self) -> None:
        now = self.now()
        for request in self._deadlines.passed(now):
            self.table.cancel(request)
            self.table.fail(request, "the deadline passed while the request waited", Failure.DEADLINE)
            self._changed()
        serving = self.table.serving()
        while any(self._assign(worker, now) for worker in self._parts.placement(serving)):
            if self.now() - now >= SLICE:  # the rest in another iteration of the event loop
                self._wake.set()
                return
            serving = self.table.serving()
        for index, row_ids in self._parts.batcher.preempt(serving, now).items():
            self.table.workers[index].pausing.update(row_ids)
            self.table.post(self.table.workers[index], Pause(tuple(row_ids)))
        if not self.table.live() and not self._dead.is_set():
            self._changed()
        self.waits.dispatched(stuck=self.table.requests_in_line > 0)

    def held_by(self, executor: int) -> int:
        """0 if lost."""
        return self.table.workers[executor].rows

    def give_up(self, executor: int, error: str) -> None:
        """Later reports are ignored."""
        self.receive(ExecutorDied(executor, error))
        self.table.post(self.table.workers[executor], Stop())

    async def death(self) -> None:
        """When no request can be served."""
        await self._dead.wait()

    async def drain(self) -> None:
        self._draining = True
        await self._empty.wait()

    def abort_all(self, message: str, failure: Failure = Failure.SHUTDOWN) -> None:
        self._draining = True
        for request in (*self.table.held, *self.waiting):
            self._fail(request, message, failure)
        self._changed()

    def _fail(self, request: Request, message: str, failure: Failure) -> None:
        self.table.cancel(request)
        if not request.state.is_final:  # else with its batch
            self.table.fail(request, message, failure)

    def _changed(self) -> None:
        self._wake.set()
        if not self.table.live():
            self._dead.set()
        if not self.waiting and not self.table.held:
            self._empty.set()

    def _break_down(self) -> None:
        log.exception("the dispatcher failed")
        self._broken = True
        self.abort_all("the scheduler failed", Failure.SCHEDULER)
        self._dead.set()

    def _assign(self, worker: Worker, now: float) -> bool:
        plan = self._parts.batcher.take(worker, now)
        if plan is None:
            return False
        self.table.assign(plan, worker)
        self.table.post(worker, plan.command)
        return True
