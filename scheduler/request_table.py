"""Where requests are, and how they end."""

import logging
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from engine.messages import BatchShape, Cancel, Cause, Command, FinishReason, HandedBack, RowId, RowUpdate, StepReport
from scheduler.assembly import SchedulerParts
from scheduler.clock import Clock
from scheduler.observers import RequestObserver
from scheduler.plan import Assignment, Plan, Returns
from scheduler.remaining_length import PROMPT_TOKEN, Calibration, remaining_length
from scheduler.request import Failure, Request, State
from scheduler.wait_estimate.expected_wait import ExpectedWait
from scheduler.worker import Port, Worker

log = logging.getLogger(__name__)


class RequestTable:
    """Event loop only."""

    def __init__(
        self, parts: SchedulerParts, ports: Sequence[Port], clock: Clock, observers: Sequence[RequestObserver] = ()
    ) -> None:
        # None: raw predictions
        self.calibration = Calibration() if parts.calibrated else None
        self._batcher = parts.batcher
        self.waiting = parts.batcher.waiting
        self._clock = clock
        self._plan_observers = parts.observers
        self._request_observers = observers
        self.workers = {port.info.index: Worker(port) for port in ports}  # lost ones too
        self.waits = ExpectedWait(parts, self.workers.values(), clock)
        # without background
        self.queued_tokens: dict[Request, int] = {}

    @property
    def held(self) -> list[Request]:
        return [request for worker in self.workers.values() for request in worker.requests.values()]

    @property
    def not_begun(self) -> list[Request]:
        return [request for request in self.held if request.state is State.ASSIGNED]

    @property
    def requests_in_line(self) -> int:
        """Without background."""
        return len(self.queued_tokens)

    @property
    def requests_waiting(self) -> int:
        return len(self.waiting) + len(self.not_begun)

    @property
    def requests_running(self) -> int:
        return len(self.held) - len(self.not_begun)

    @property
    def tokens_waiting(self) -> int:
        """In line, with answers expected."""
        return sum(self.queued_tokens.values())

    @property
    def kv_usage(self) -> float:
        capacity = sum(worker.capacity_tokens for worker in self.live())
        return sum(worker.used_tokens for worker in self.live()) / capacity if capacity else 0.0

    def first_in_line(self, most: int) -> list[Request]:
        return list(islice(self.waiting.ranked(self._clock.now()), most))

    def live(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if not worker.lost]

    def serving(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.serves]

    def queue(self, request: Request) -> None:
        self._line_up(request)
        self._batcher.add(request, self._clock.now())

    def _line_up(self, request: Request) -> None:
        if not request.in_background:
            self.queued_tokens[request] = request.tokens + int(remaining_length(request))

    def revise(self, request: Request) -> None:
        if request.executor is None:
            self._line_up(request)
        self._batcher.revise(request, self._clock.now())

    def correct(self, request: Request) -> float:
        return 1.0 if self.calibration is None else self.calibration.factor(request, self.held)

    def assign(self, plan: Plan, worker: Worker) -> None:
        worker.plans += 1
        assignment = Assignment(plan, worker.index, self._clock.now())
        for request in plan.requests:
            request.move(State.ASSIGNED)
            self.queued_tokens.pop(request, None)
            request.executor = worker.index
            request.lacks_kv = False
            request.runs += 1
            if request.times.assigned is None:
                request.times.assigned = assignment.sent
            worker.requests[request.row_id] = request
            worker.assignments[request.row_id] = assignment
        self.waits.count_again()

    def cancel(self, request: Request) -> None:
        self._batcher.discard(request)
        if request.executor is not None:
            worker = self.workers[request.executor]
            assignment = worker.assignments[request.row_id]
            assignment.intact &= request not in assignment.open
            self._leave(request)
            self._release(assignment)
            self.post(worker, Cancel((request.row_id,)))
        elif request.runs:  # handed back before
            self._drop_kept([request.row_id])

    def record(self, report: StepReport) -> None:
        worker = self.workers[report.executor]
        worker.shape = report.shape
        now = self._clock.now()
        for row_id in report.begun:
            if row_id in worker.requests:
                self._begin(worker, worker.requests[row_id], now - report.seconds)
        made = decoded = 0
        for update in report.updates:
            request = worker.requests.get(update.row_id)
            if request is None:  # cancelled meanwhile
                continue
            made += (tokens := update.tokens)
            decoded += tokens if request.generated > 1 else 0
            request.generated += tokens
            assignment = worker.assignments[update.row_id]
            if request.state is not State.RUNNING or assignment.began is None:
                self._begin(worker, request, now - report.seconds)
            began = update.finish_reason is None and request.times.first_token is not None
            if began and assignment.plan.returns is Returns.ROW_END:  # nearly all: nothing but text
                request.stream.put(update)
            else:
                self._absorb(request, update, assignment, now)
        for handed_back in report.handed_back:
            self._take_back(worker, handed_back, now)
        self.waits.made(made, decoded, report.tally.prompt, len(report.begun))

    def post(self, worker: Worker, command: Command) -> None:
        """On failure the executor is lost."""
        try:
            worker.port.post(command)
        except Exception as error:  # others go on
            log.exception("executor %d takes no commands", worker.index)
            self.remove_executor(worker.index, f"it takes no commands: {error}", ())

    def remove_executor(self, executor: int, error: str, salvaged: Collection[RowId]) -> None:
        """Salvaged and unstarted requests move, others restart if nothing was shown, or fail."""
        worker = self.workers[executor]
        if worker.lost:
            return
        log.error("executor %d is gone: %s", worker.index, error)
        worker.lost = True
        worker.shape = BatchShape()
        begun, cancelled = worker.reclaim()
        lost = dict.fromkeys(worker.assignments.values())
        for assignment in lost:
            self._send_held(assignment)
        orphans, safe = list(worker.requests.values()), {*salvaged, *begun}
        stranded = [request for request in orphans if request.generated and request.row_id not in safe]
        for request in orphans:
            self._leave(request)
        for request in orphans:
            if request not in stranded:
                request.move(State.WAITING)
                self.queue(request)
        for assignment in lost:
            assignment.intact = False
            self._conclude(assignment)
        self._drop_kept([*cancelled, *(request.row_id for request in stranded)])
        self._fail_all(stranded, "the executor of this request failed", Failure.EXECUTOR)
        if not self.live():
            self._fail_all(list(self.waiting), "no executor is alive", Failure.EXECUTOR)

    def fail(self, request: Request, message: str, failure: Failure) -> None:
        request.failure = failure
        request.send(RowUpdate(request.row_id, finish_reason=FinishReason.ERROR, error=message), self._clock.now())
        self.end(request, State.FAILED, FinishReason.ERROR)

    def end(self, request: Request, state: State, reason: FinishReason | None) -> None:
        request.move(state)
        self.queued_tokens.pop(request, None)
        request.executor = None
        request.times.end = now = self._clock.now()
        self._batcher.ended(request)
        if state is State.FINISHED:
            self.waits.ended(request, now)
            if self.calibration is not None:
                self.calibration.add(request)
        else:
            self.waits.broke_off(request, now)
        if request.program is not None:
            read = request.input_length - request.cached_prompt if request.times.started is not None else 0
            request.program.end(request.generated + PROMPT_TOKEN * read, request.tokens, now)
        for observer in self._request_observers:
            observer.on_end(request, reason, now)

    def _leave(self, request: Request) -> None:
        assert request.executor is not None
        worker = self.workers[request.executor]
        request.executor = None
        worker.pausing.discard(request.row_id)
        del worker.requests[request.row_id]
        assignment = worker.assignments.pop(request.row_id)
        assignment.open.discard(request)
        assignment.held.pop(request, None)
        self.waits.count_again()

    def _begin(self, worker: Worker, request: Request, now: float) -> None:
        if request.state is State.ASSIGNED:
            request.move(State.RUNNING)
        if request.times.started is None:
            request.times.started = now
        assignment = worker.assignments[request.row_id]
        if assignment.began is None:
            assignment.began = now

    def _absorb(self, request: Request, update: RowUpdate, assignment: Assignment, now: float) -> None:
        if assignment.plan.returns is Returns.BATCH_END:
            assignment.hold(request, update)
        else:
            self._deliver(request, update, now)
        if update.finish_reason is not None:
            assignment.intact &= update.finish_reason is not FinishReason.ERROR
            assignment.open.discard(request)
            self._release(assignment)

    def _deliver(self, request: Request, update: RowUpdate, now: float) -> None:
        if request.send(update, now):
            for observer in self._request_observers:
                observer.on_first_token(request, now)
        if update.finish_reason is not None:
            self._leave(request)
            failed = update.finish_reason is FinishReason.ERROR
            self.end(request, State.FAILED if failed else State.FINISHED, update.finish_reason)

    def _send_held(self, assignment: Assignment) -> None:
        for request, update in list(assignment.held.items()):
            self._deliver(request, update, self._clock.now())

    def _release(self, assignment: Assignment) -> None:
        if not assignment.open:
            self._send_held(assignment)
            self._conclude(assignment)

    def _conclude(self, assignment: Assignment) -> None:
        if assignment.ended is None:
            assignment.ended = self._clock.now()
            for observer in self._plan_observers:
                observer.on_finish(assignment, assignment.ended)

    def _take_back(self, worker: Worker, handed_back: HandedBack, now: float) -> None:
        requests = [worker.requests[row_id] for row_id in handed_back.row_ids if row_id in worker.requests]
        dropped = set(handed_back.dropped)
        for request in requests:
            assignment = worker.assignments[request.row_id]
            assignment.intact &= handed_back.cause is Cause.SLICE
            if request in assignment.held:
                self._deliver(request, assignment.held[request], now)
            self._leave(request)
            request.lacks_kv = request.row_id in dropped
            request.move(State.WAITING)
            self._line_up(request)
            self._release(assignment)
        if requests:
            self._batcher.hand_back(requests, handed_back.cause, now)

    def _drop_kept(self, row_ids: Sequence[RowId]) -> None:
        for worker in self.live()[:1]:
            if row_ids:
                self.post(worker, Cancel(tuple(row_ids)))

    def _fail_all(self, requests: Iterable[Request], message: str, failure: Failure) -> None:
        for request in requests:
            self._batcher.discard(request)
            self.fail(request, message, failure)
