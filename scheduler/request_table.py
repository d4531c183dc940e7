"""The request table: which requests wait, which rows executors hold, and how each request comes to its end.

The dispatcher enters here what it sends to executors and what they report. The table decides nothing and never waits.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from engine.messages import (
    Admit,
    BatchShape,
    Cancel,
    Cause,
    Command,
    FinishReason,
    HandedBack,
    RowId,
    RowUpdate,
    StepReport,
)
from scheduler.batching.batcher import Batcher
from scheduler.clock import Clock
from scheduler.plan import Assignment, Plan, PlanObserver, Port, RequestObserver, Returns, Worker
from scheduler.remaining_length import Calibration, remaining_length
from scheduler.request import Failure, Request, State
from scheduler.wait_estimate.expected_wait import ExpectedWait
from scheduler.waiting.prices import PricesNow, device_prices

log = logging.getLogger(__name__)


class RequestTable:
    """All methods belong to the event loop's thread."""

    def __init__(
        self,
        batcher: Batcher,
        ports: Sequence[Port],
        clock: Clock,
        *,
        prices: PricesNow = device_prices,
        plan_observers: Sequence[PlanObserver] = (),
        request_observers: Sequence[RequestObserver] = (),
        calibration: Calibration | None = None,
    ) -> None:
        """`calibration` learns what predictions are worth; None takes them as they are."""
        self.calibration = calibration
        self._batcher = batcher
        self.waiting = batcher.waiting
        """Requests that no executor has, in no particular order."""
        self._clock = clock
        self._plan_observers = plan_observers
        self._request_observers = request_observers
        self.workers = {port.info.index: Worker(port) for port in ports}
        """Executors by index, lost ones too."""
        self.expected_wait = ExpectedWait(batcher, self.workers.values(), prices)
        self.queued_tokens: dict[Request, int] = {}
        """Tokens of each request in line: prompt, generated, and expected to come; background requests do not count."""

    @property
    def held(self) -> int:
        """Requests that an executor holds, in whatever stage."""
        return sum(worker.rows for worker in self.workers.values())

    @property
    def not_begun(self) -> list[Request]:
        """Requests that executors have and have not begun."""
        return [
            one for worker in self.workers.values() for one in worker.requests.values() if one.state is State.ASSIGNED
        ]

    def live(self) -> list[Worker]:
        """Executors that are not lost."""
        return [worker for worker in self.workers.values() if not worker.lost]

    def serving(self) -> list[Worker]:
        """Executors that can be given rows."""
        return [worker for worker in self.workers.values() if worker.serves]

    def queue(self, request: Request) -> None:
        """Put a request among those that wait."""
        now = self._clock.now()
        if request.runs == 0:
            self.expected_wait.came(request, now)
        self._line_up(request)
        self._batcher.add(request, now)

    def _line_up(self, request: Request) -> None:
        """Count a waiting request, or count it anew."""
        if not request.in_background:
            self.queued_tokens[request] = request.tokens + int(remaining_length(request))

    def revise(self, request: Request) -> None:
        """Rank a request anew, since its prediction has changed: among those that wait, or on its executor."""
        if request.executor is None:
            self._line_up(request)
        self._batcher.revise(request, self._clock.now())

    def correct(self, request: Request) -> float:
        """What a request's prediction is to be multiplied by."""
        if self.calibration is None:
            return 1.0
        return self.calibration.factor(request, chain.from_iterable(one.requests.values() for one in self.live()))

    def refuse(self, request: Request) -> None:
        """Drop a request that was just queued: it is not taken in after all."""
        self._batcher.discard(request)
        self.queued_tokens.pop(request, None)
        self.expected_wait.forget(request)

    def assign(self, plan: Plan, worker: Worker) -> None:
        """Hand a plan's requests over to an executor."""
        worker.plans += 1
        assignment = Assignment(plan, worker.info.index, self._clock.now())
        for request in plan.requests:
            self._hand_over(request, worker, assignment)

    def withdraw(self, request: Request) -> None:
        """Take a request back from wherever it is; an executor frees its row, or what it kept of it, at once."""
        self._batcher.discard(request)
        if request.executor is not None:
            worker = self.workers[request.executor]
            assignment = worker.assignments[request.row_id]
            assignment.intact &= request not in assignment.open
            self._leave(worker, request)
            self._release(assignment)
            self.post(worker, Cancel((request.row_id,)))
        elif request.runs:  # handed back before
            self._drop_kept([request.row_id])

    def record(self, report: StepReport) -> None:
        """Enter what a step brought to each row."""
        worker = self.workers[report.executor]
        worker.shape = report.shape
        now = self._clock.now()
        for row_id in report.begun:
            if row_id in worker.requests:
                self._begin(worker, worker.requests[row_id], now - report.seconds)
        made = decoded = 0
        for update in report.updates:
            request = worker.requests.get(update.row_id)
            if request is not None:  # else it was cancelled while the step was under way
                made += len(update.token_ids)
                decoded += len(update.token_ids) if request.generated > 1 else 0
                self._begin(worker, request, now - report.seconds)
                self._absorb(worker, request, update, now)
        for handed_back in report.handed_back:
            self._take_back(worker, handed_back, now)
        tally = report.tally
        self.expected_wait.made(made, decoded, tally.prompt, len(report.begun), now)

    def post(self, worker: Worker, command: Command) -> None:
        """Send a command to an executor; one that cannot take it is lost, and no other."""
        try:
            worker.port.post(command)
        except Exception as error:  # whatever it is, the requests of other executors go on
            log.exception("executor %d takes no commands", worker.info.index)
            self.remove_executor(worker.info.index, f"it takes no commands: {error}", ())

    def remove_executor(self, executor: int, error: str, salvaged: Collection[RowId]) -> None:
        """Take an executor out that is gone: requests that it salvaged or never took up go on elsewhere, those that
        have shown nothing yet start again, the others fail."""
        worker = self.workers[executor]
        if worker.lost:  # it was given up before
            return
        log.error("executor %d is gone: %s", worker.info.index, error)
        worker.lost = True
        worker.shape = BatchShape()
        untaken = worker.port.withdraw()
        safe = {*salvaged, *(spec.row_id for order in untaken if isinstance(order, Admit) for spec in order.rows)}
        self._rescue_held(worker)
        orphans = list(worker.requests.values())
        lost = dict.fromkeys(worker.assignments.values())
        worker.requests.clear()
        worker.pausing.clear()
        worker.assignments.clear()
        stranded = [request for request in orphans if request.generated and request.row_id not in safe]
        for request in orphans:
            request.executor = None
            if request not in stranded:
                request.move(State.WAITING)
                self.queue(request)
        for assignment in lost:
            assignment.intact = False
            self._conclude(assignment)
        cancelled = [row_id for order in untaken if isinstance(order, Cancel) for row_id in order.row_ids]
        self._drop_kept([*cancelled, *(request.row_id for request in stranded)])
        self._fail_all(stranded, "the executor of this request failed", Failure.EXECUTOR)
        if not self.live():
            self._fail_all(list(self.waiting), "no executor is alive", Failure.EXECUTOR)

    def fail(self, request: Request, message: str, failure: Failure) -> None:
        """End a withdrawn request with an error."""
        request.failure = failure
        request.send(RowUpdate(request.row_id, finish_reason=FinishReason.ERROR, error=message), self._clock.now())
        self.end(request, State.FAILED, FinishReason.ERROR)

    def end(self, request: Request, state: State, reason: FinishReason | None) -> None:
        """End a request that was withdrawn or has its last token."""
        request.move(state)
        self.queued_tokens.pop(request, None)
        request.executor = None
        request.times.end = now = self._clock.now()
        if state is not State.FINISHED:
            self.expected_wait.forget(request)
        else:
            self.expected_wait.ended(request, now)
            if self.calibration is not None:
                self.calibration.add(request)
        for observer in self._request_observers:
            observer.on_end(request, reason, now)

    def _hand_over(self, request: Request, worker: Worker, assignment: Assignment) -> None:
        request.move(State.ASSIGNED)
        self.queued_tokens.pop(request, None)
        request.executor = worker.info.index
        request.lacks_kv = False
        request.runs += 1
        if request.times.assigned is None:
            request.times.assigned = assignment.sent
        worker.requests[request.row_id] = request
        worker.assignments[request.row_id] = assignment

    def _leave(self, worker: Worker, request: Request) -> None:
        """Take a request off its executor."""
        request.executor = None
        worker.pausing.discard(request.row_id)
        del worker.requests[request.row_id]
        assignment = worker.assignments.pop(request.row_id)
        assignment.open.discard(request)
        assignment.held.pop(request, None)

    def _begin(self, worker: Worker, request: Request, now: float) -> None:
        if request.state is State.ASSIGNED:
            request.move(State.RUNNING)
        if request.times.started is None:
            request.times.started = now
        assignment = worker.assignments[request.row_id]
        if assignment.began is None:
            assignment.began = now

    def _absorb(self, worker: Worker, request: Request, update: RowUpdate, now: float) -> None:
        request.generated += len(update.token_ids)
        assignment = worker.assignments[request.row_id]
        assignment.intact &= update.finish_reason is not FinishReason.ERROR
        if assignment.plan.returns is Returns.BATCH_END:
            self._hold(assignment, request, update)
        elif update.finish_reason is not None:
            self._deliver(worker, request, update)
            self._release(assignment)
        else:
            self._send(request, update, now)

    def _send(self, request: Request, update: RowUpdate, now: float) -> None:
        if request.send(update, now):
            for observer in self._request_observers:
                observer.on_first_token(request, now)

    def _hold(self, assignment: Assignment, request: Request, update: RowUpdate) -> None:
        assignment.hold(request, update)
        if update.finish_reason is not None:
            assignment.open.discard(request)
            self._release(assignment)

    def _release(self, assignment: Assignment) -> None:
        """Send the held answers of a batch once its last row has ended."""
        if assignment.open:
            return
        for request, update in list(assignment.held.items()):
            self._deliver(self.workers[assignment.executor], request, update)
        self._conclude(assignment)

    def _conclude(self, assignment: Assignment) -> None:
        """Tell the observer, once, that an assignment is over."""
        if assignment.ended is None:
            assignment.ended = self._clock.now()
            for observer in self._plan_observers:
                observer.on_finish(assignment, assignment.ended)

    def _deliver(self, worker: Worker, request: Request, update: RowUpdate) -> None:
        """Send a request's last update and end it."""
        self._send(request, update, self._clock.now())
        self._leave(worker, request)
        self.end(request, _outcome(update), update.finish_reason)

    def _take_back(self, worker: Worker, handed_back: HandedBack, now: float) -> None:
        """Let rows that an executor handed back wait again, with what they have generated."""
        requests = [worker.requests[row_id] for row_id in handed_back.row_ids if row_id in worker.requests]
        dropped = set(handed_back.dropped)
        for request in requests:
            assignment = worker.assignments[request.row_id]
            assignment.intact &= handed_back.cause is Cause.SLICE
            partial = assignment.held.get(request)
            self._leave(worker, request)
            if partial is not None:
                self._send(request, partial, now)
            request.lacks_kv = request.row_id in dropped
            request.move(State.WAITING)
            self._line_up(request)
            self._release(assignment)
        if requests:
            self._batcher.hand_back(requests, handed_back.cause, now)

    def _drop_kept(self, row_ids: Sequence[RowId]) -> None:
        """Free the K and V of rows in host memory; executors share it, so any of them will do."""
        for worker in self.live()[:1]:
            if row_ids:
                self.post(worker, Cancel(tuple(row_ids)))

    def _rescue_held(self, worker: Worker) -> None:
        """Send the answers that a lost executor's batches held; complete ones end."""
        for assignment in set(worker.assignments.values()):
            for request, update in list(assignment.held.items()):
                if update.finish_reason is not None:
                    self._deliver(worker, request, update)
                else:
                    self._send(request, update, self._clock.now())

    def _fail_all(self, requests: Iterable[Request], message: str, failure: Failure) -> None:
        for request in requests:
            self._batcher.discard(request)
            self.fail(request, message, failure)


def _outcome(update: RowUpdate) -> State:
    return State.FAILED if update.finish_reason is FinishReason.ERROR else State.FINISHED
