"""The loop that decides: arrivals and reports come in, orders go out. It runs on the event loop and owns every
request from arrival to end. What to decide is the strategy's parts' business; there is no branch on a strategy here.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from engine.messages import (
    Cancel,
    Cause,
    ExecutorDied,
    FinishReason,
    HandedBack,
    Pause,
    Report,
    RowId,
    RowUpdate,
    SamplingParams,
    StepReport,
    Stop,
)
from scheduler.assembly import Parts
from scheduler.assignment import Assignment
from scheduler.clock import Clock, earlier
from scheduler.deadlines import Deadlines
from scheduler.ledger import Ledger
from scheduler.outlook import Outlook
from scheduler.preemption import Preemption
from scheduler.queued import QueuedTokens
from scheduler.request import Failure, Request, State, Times
from scheduler.worker import Port, Worker

if TYPE_CHECKING:
    from scheduler.length.distribution import LengthDistribution

log = logging.getLogger(__name__)


class Refused(Exception):
    """The server takes no new requests; the message says why."""

    def __init__(self, message: str, failure: Failure = Failure.SHUTDOWN) -> None:
        super().__init__(message)
        self.failure = failure


class TooLate(Refused):
    """A request's deadline cannot be met, by what the queue is expected to take."""

    def __init__(self) -> None:
        super().__init__("the answer cannot be ready by its deadline: too much waits before it", Failure.DEADLINE)


class Dispatcher:
    """All methods belong to the event loop's thread."""

    def __init__(self, parts: Parts, ports: Sequence[Port], clock: Clock, ledger: Ledger | None = None) -> None:
        self._parts = parts
        self._clock = clock
        self._ledger = ledger
        self._workers = {port.info.index: Worker(port) for port in ports}
        self._outlook = Outlook(parts.batcher, self._workers.values())
        self._deadlines = Deadlines()
        self._queued = QueuedTokens()
        self._row_ids = itertools.count()
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._dead = asyncio.Event()
        self._draining = False
        self._broken = False

    @property
    def requests_waiting(self) -> int:
        return len(self._parts.batcher.waiting)

    @property
    def requests_running(self) -> int:
        """Requests that an executor holds, in whatever stage."""
        return sum(worker.rows for worker in self._workers.values())

    @property
    def tokens_waiting(self) -> int:
        """Of what waits: prompts, what was generated, and what is predicted to come or else may."""
        return self._queued.total

    @property
    def free_slots(self) -> int:
        """Requests that would not have to wait if they came now."""
        return self._outlook.free_slots

    @property
    def alive(self) -> bool:
        """Whether requests can still be served."""
        return not self._broken and any(worker.port.alive for worker in self._live())

    @property
    def waiting(self) -> Collection[Request]:
        """What no executor has, in no particular order. To be read only."""
        return self._parts.batcher.waiting

    @property
    def workers(self) -> Collection[Worker]:
        """The books on the executors, lost ones too. To be read only."""
        return self._workers.values()

    def now(self) -> float:
        """Seconds of the clock that arrivals and deadlines are told in."""
        return self._clock.now()

    def place(self, request: Request) -> int | None:
        """How many requests are ahead in line, as far as the order tells; None when it does not wait."""
        return self._outlook.place(request, self._clock.now())

    def expected_wait(self, request: Request) -> float | None:
        """Seconds until a request starts; None when it does not wait, or when nothing has been measured yet."""
        return self._outlook.wait(request, self._clock.now())

    def retry_after(self) -> float:
        """Seconds, 1 at least, after which what waits now will have started: then one who comes now shall try again."""
        return max(1.0, self._outlook.newcomer_wait(self._clock.now()) or 0.0)

    def held_by(self, executor: int) -> int:
        """Requests that an executor holds, by the books; 0 once it is lost."""
        return self._workers[executor].rows

    def submit(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        deadline: float | None = None,
        predicted_length: float | None = None,
        distribution: LengthDistribution | None = None,
        arrival: float | None = None,
    ) -> Request:
        """Take a request in; its answer comes through `request.stream`. Raises Refused, and TooLate for its deadline.

        `arrival` is when it came, in seconds of the clock; now where nobody says.
        """
        if not self.alive:
            raise self._refusal()
        if self._draining:
            raise Refused("the server is shutting down")
        times = Times(arrival=self._clock.now() if arrival is None else arrival)
        request = Request(next(self._row_ids), tuple(prompt), sampling, times, priority, deadline)
        request.predicted_length = predicted_length
        request.distribution = distribution
        self._queue(request)
        if not self._can_meet(request):
            self._parts.batcher.discard(request)
            self._queued.leave(request)
            raise TooLate
        self._empty.clear()
        self._deadlines.add(request)
        return request

    def revise(
        self, request: Request, predicted_length: float | None, distribution: LengthDistribution | None = None
    ) -> None:
        """Better is known of how long an answer becomes, wherever the request is by now."""
        request.predicted_length, request.distribution = predicted_length, distribution
        if request.state is not State.WAITING:
            return
        self._queued.enter(request)
        try:
            self._parts.batcher.revise(request, self._clock.now())
        except Exception:
            self._break_down()
        self._wake.set()

    def cancel(self, request: Request) -> None:
        """End a request whose answer nobody wants any more. Safe at any time, also after its end."""
        if not request.state.is_final:
            self._withdraw(request)
            self._end(request, State.CANCELLED, None)

    def receive(self, report: Report) -> None:
        """Book an executor's report."""
        match report:
            case StepReport():
                self._book(report)
            case ExecutorDied(executor, error, salvaged):
                self._bury(self._workers[executor], error, set(salvaged))
        self._wake.set()

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
        """When `dispatch` may do otherwise though nothing has happened; None for never."""
        return earlier(self._parts.batcher.wake_at(self._clock.now()), self._deadlines.next())

    def dispatch(self) -> None:
        """Hand out plans until no executor can be given more."""
        self._expire(self._clock.now())
        while any(self._assign(worker) for worker in self._parts.placement(self._live())):
            pass
        if self._parts.preemption is not None and self._parts.batcher.waiting:
            self._preempt(self._parts.preemption)
        self._outlook.dispatched(self._clock.now())

    def give_up(self, executor: int, error: str) -> None:
        """An executor stands still: treat it as dead. Should it ever go on, what it reports is ignored, and it ends."""
        self._workers[executor].port.post(Stop())
        self.receive(ExecutorDied(executor, error))

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
        held = [request for worker in self._workers.values() for request in worker.requests.values()]
        for request in (*held, *self._parts.batcher.waiting):
            self._withdraw(request)
            if not request.state.is_final:  # as it is when it was the last that its batch waited for
                self._fail(request, message, failure)

    def _break_down(self) -> None:
        """A fault in a strategy's part: nothing will be dispatched any more, so nobody shall wait for it."""
        log.exception("the dispatcher failed")
        self._broken = True
        self.abort_all("the scheduler failed", Failure.SCHEDULER)
        self._dead.set()

    def _live(self) -> list[Worker]:
        return [worker for worker in self._workers.values() if not worker.lost]

    def _can_meet(self, request: Request) -> bool:
        """Whether a request that waits may be ready in time; true where nobody can say."""
        if request.deadline is None:
            return True
        now = self._clock.now()
        return now < request.deadline and now + (self._outlook.latency(request, now) or 0.0) <= request.deadline

    def _expire(self, now: float) -> None:
        """End what has waited past its deadline: whatever it got now would come too late."""
        for request in self._deadlines.passed(now):
            self._withdraw(request)
            self._fail(request, "the deadline passed while the request waited", Failure.DEADLINE)

    def _refusal(self) -> Refused:
        if self._broken:
            return Refused("the scheduler failed", Failure.SCHEDULER)
        return Refused("no executor is alive", Failure.EXECUTOR)

    def _queue(self, request: Request) -> None:
        self._queued.enter(request)
        self._parts.batcher.add(request, self._clock.now())
        self._wake.set()

    def _assign(self, worker: Worker) -> bool:
        """Give one executor one plan; False when there is none for it."""
        now = self._clock.now()
        plan = self._parts.batcher.take(worker, now)
        if plan is None:
            return False
        worker.plans += 1
        assignment = Assignment(plan, worker.info.index, now)
        for request in plan.requests:
            self._hand_over(request, worker, assignment)
        worker.port.post(plan.order)
        return True

    def _preempt(self, preemption: Preemption) -> None:
        """Ask executors for the rows whose slots what waits shall have; they come back through `hand_back`."""
        pauses = preemption(self._live(), self._parts.batcher.waiting, self._clock.now())
        for index, row_ids in pauses.items():
            self._workers[index].pausing.update(row_ids)
            self._workers[index].port.post(Pause(row_ids))

    def _hand_over(self, request: Request, worker: Worker, assignment: Assignment) -> None:
        request.move(State.ASSIGNED)
        self._queued.leave(request)
        request.executor = worker.info.index
        request.lacks_kv = False
        request.runs += 1
        if request.times.assigned is None:
            request.times.assigned = assignment.sent
        worker.requests[request.row_id] = request
        worker.assignments[request.row_id] = assignment

    def _leave(self, worker: Worker, request: Request) -> None:
        """A request's row is no longer on its executor; the last row of a batch to go ends the batch."""
        request.executor = None
        worker.pausing.discard(request.row_id)
        del worker.requests[request.row_id]
        assignment = worker.assignments.pop(request.row_id)
        assignment.open.discard(request)
        assignment.held.pop(request, None)

    def _withdraw(self, request: Request) -> None:
        """Take a request back from wherever it is; an executor frees its row, or what it kept of it, at once."""
        self._parts.batcher.discard(request)
        if request.executor is not None:
            worker = self._workers[request.executor]
            assignment = worker.assignments[request.row_id]
            assignment.intact &= request not in assignment.open
            worker.port.post(Cancel((request.row_id,)))
            self._leave(worker, request)
            self._release(assignment)
        elif request.runs:  # handed back before: whichever executor is asked, they share what is kept of it
            for worker in self._live()[:1]:
                worker.port.post(Cancel((request.row_id,)))

    def _book(self, report: StepReport) -> None:
        worker = self._workers[report.executor]
        worker.shape = report.shape
        now = self._clock.now()
        for row_id in report.begun:
            if row_id in worker.requests:
                self._begin(worker, worker.requests[row_id], now - report.seconds)
        for update in report.updates:
            request = worker.requests.get(update.row_id)
            if request is not None:  # else it was cancelled while the step was under way
                self._begin(worker, request, now - report.seconds)
                self._absorb(worker, request, update, now)
        for handed_back in report.handed_back:
            self._take_back(worker, handed_back, now)
        self._outlook.made(sum(len(update.token_ids) for update in report.updates), now)

    def _begin(self, worker: Worker, request: Request, now: float) -> None:
        if request.times.started is None:
            request.times.started = now
        assignment = worker.assignments[request.row_id]
        if assignment.began is None:
            assignment.began = now

    def _absorb(self, worker: Worker, request: Request, update: RowUpdate, now: float) -> None:
        if update.token_ids and request.state is State.ASSIGNED:
            request.move(State.RUNNING)
        request.generated += len(update.token_ids)
        assignment = worker.assignments[request.row_id]
        assignment.intact &= update.finish_reason is not FinishReason.ERROR
        if assignment.holds_answers:
            self._hold(assignment, request, update)
        elif update.finish_reason is not None:
            self._deliver(worker, request, update)
            self._release(assignment)
        else:
            request.tell(update, now)

    def _hold(self, assignment: Assignment, request: Request, update: RowUpdate) -> None:
        assignment.hold(request, update)
        if update.finish_reason is not None:
            assignment.open.discard(request)
            self._release(assignment)

    def _release(self, assignment: Assignment) -> None:
        """Let the answers of a batch go out once its last row has ended."""
        if assignment.open:
            return
        for request, update in list(assignment.held.items()):
            self._deliver(self._workers[assignment.executor], request, update)
        self._conclude(assignment)

    def _conclude(self, assignment: Assignment) -> None:
        """An assignment is over: say so once."""
        if assignment.ended is None:
            assignment.ended = self._clock.now()
            if self._parts.observer is not None:
                self._parts.observer.finished(assignment, assignment.ended)

    def _deliver(self, worker: Worker, request: Request, update: RowUpdate) -> None:
        """The last that a request's reader gets to see."""
        request.tell(update, self._clock.now())
        self._leave(worker, request)
        self._end(request, _outcome(update), update.finish_reason)

    def _take_back(self, worker: Worker, handed_back: HandedBack, now: float) -> None:
        """Rows that an executor let go wait again; what they have generated stays theirs."""
        requests = [worker.requests[row_id] for row_id in handed_back.row_ids if row_id in worker.requests]
        dropped = set(handed_back.dropped)
        for request in requests:
            assignment = worker.assignments[request.row_id]
            assignment.intact &= handed_back.cause is Cause.SLICE
            partial = assignment.held.get(request)
            self._leave(worker, request)
            if partial is not None:
                request.tell(partial, now)
            request.lacks_kv = request.row_id in dropped
            request.move(State.WAITING)
            self._queued.enter(request)
            self._release(assignment)
        if requests:
            self._parts.batcher.hand_back(requests, handed_back.cause, now)

    def _bury(self, worker: Worker, error: str, salvaged: set[RowId]) -> None:
        """An executor is gone: requests that it salvaged go on elsewhere, those that have shown nothing yet start
        again, the others fail."""
        if worker.lost:  # the last word of one that was given up
            return
        log.error("executor %d is gone: %s", worker.info.index, error)
        worker.lost = True
        self._rescue_held(worker)
        orphans = list(worker.requests.values())
        lost = dict.fromkeys(worker.assignments.values())
        worker.requests.clear()
        worker.pausing.clear()
        worker.assignments.clear()
        stranded = [request for request in orphans if request.generated and request.row_id not in salvaged]
        for request in orphans:
            request.executor = None
            if request not in stranded:
                request.move(State.WAITING)
                self._queue(request)
        for assignment in lost:
            assignment.intact = False
            self._conclude(assignment)
        # Only now, since the last request to end wakes who waits for that.
        self._fail_all(stranded, "the executor of this request failed", Failure.EXECUTOR)
        if not self._live():
            self._fail_all(list(self._parts.batcher.waiting), "no executor is alive", Failure.EXECUTOR)
            self._dead.set()

    def _rescue_held(self, worker: Worker) -> None:
        """What waited for others of its batch is told; answers that are complete need no executor any more."""
        for assignment in set(worker.assignments.values()):
            for request, update in list(assignment.held.items()):
                if update.finish_reason is not None:
                    self._deliver(worker, request, update)
                else:
                    request.tell(update, self._clock.now())

    def _fail_all(self, requests: Iterable[Request], message: str, failure: Failure) -> None:
        for request in requests:
            self._parts.batcher.discard(request)
            self._fail(request, message, failure)

    def _fail(self, request: Request, message: str, failure: Failure) -> None:
        request.failure = failure
        request.tell(RowUpdate(request.row_id, finish_reason=FinishReason.ERROR, error=message), self._clock.now())
        self._end(request, State.FAILED, FinishReason.ERROR)

    def _end(self, request: Request, state: State, reason: FinishReason | None) -> None:
        request.move(state)
        self._queued.leave(request)
        request.executor = None
        request.times.end = now = self._clock.now()
        if state is State.FINISHED:
            self._outlook.ended(request)
        if self._ledger is not None:
            self._ledger.ended(request, reason, now)
        self._wake.set()
        if self.requests_waiting == 0 and self.requests_running == 0:
            self._empty.set()


def _outcome(update: RowUpdate) -> State:
    return State.FAILED if update.finish_reason is FinishReason.ERROR else State.FINISHED
