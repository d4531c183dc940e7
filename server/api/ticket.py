"""A call's room in the queue and its key's quota, decided before anything is read."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from scheduler.dispatcher import Dispatcher
from scheduler.length.features import LengthQuery
from scheduler.length.prediction import Prediction
from scheduler.request import Refused, Request, TooLate, Unpromised
from scheduler.stream import SLICE, Wakeups
from scheduler.submission import Submission
from scheduler.wait_estimate.calibration import find_last
from server.access import ACCESS, ALL, HOLDER
from server.api.errors import ApiError, askable, busy, failure_error, is_refused, note_code, shutting_down, unpromised
from server.api.health import LIFE
from server.api.operation import OPERATION, Operation
from server.api.output.reply import Expectation, expectation_of, write_time
from server.api.register import Record
from server.api.served_model import DISPATCHER, LENGTHS, LIMITS
from server.config import FrontConfig


@dataclass(slots=True)
class PendingCalls:
    """Not yet in the queue. Event loop only."""

    arrived: int = 0  # answers asked for; one until the body is read
    body_bytes: Counter[str] = field(default_factory=Counter)  # held until parsed, by sender
    turns: Wakeups = field(default_factory=lambda: Wakeups(SLICE / 5))  # of reading, parsing, encoding, queueing


PENDING = web.AppKey("pending", PendingCalls)


class AdmissionSlot:
    """A call's share until it is queued, and in its key's quota."""

    def __init__(self, request: web.Request, operation: Operation) -> None:
        """Raises ApiError 429."""
        app = request.app
        self._limits, self._pending, self._dispatcher = app[LIMITS], app[PENDING], app[DISPATCHER]
        self._quota = app[ACCESS].quota
        self._counted = 0  # waiting for the queue
        if operation.generates and (request.content_length or 0) <= self._limits.max_body_bytes:
            self.count_answers(1, arrived=False)  # more never fits, and gets an error
        # Counting calls have a quota of their own.
        holder = request.get(HOLDER, ALL)
        self._account = f"{holder} counting" if operation.counts else holder
        self._share = self._quota.enter(self._account, self._dispatcher.now())

    def count_answers(self, answers: int, *, arrived: bool = True) -> None:
        """`arrived` once the body is read. Raises ApiError 400, and 429 where they do not fit; one alone does."""
        dispatcher, limits = self._dispatcher, self._limits
        if answers > 1:
            self._quota.count_answers(self._share, answers)
        most = limits.max_num_queued_reqs
        others = dispatcher.table.requests_in_line + self._pending.arrived - self._counted
        crowded = others + answers > most and (others > 0 or answers == 1)
        if crowded and others + answers - dispatcher.waits.free_slots > most:
            reason = f"{most} requests wait already"
            if answers > 1:
                reason = f"{others} requests wait already, with these {answers} it would be more than {most}"
            raise _full(f"{reason} (--max-num-queued-reqs)", dispatcher)
        if (tokens := limits.max_num_queued_tokens) is not None and dispatcher.table.tokens_waiting >= tokens:
            raise _full(f"{tokens} tokens wait already (--max-num-queued-tokens)", dispatcher)
        if arrived:
            self._pending.arrived += answers - self._counted
            self._counted = answers

    def spend(self, tokens: int) -> None:
        self._quota.spend(self._account, tokens, self._dispatcher.now())

    def settle(self) -> None:
        self._pending.arrived -= self._counted
        self._counted = 0

    def close(self, *, refused: bool) -> None:
        """Refused calls count in no quota of requests."""
        self.settle()
        if refused:
            self._quota.forgive(self._share)
        self._quota.leave(self._share)


TICKET = web.RequestKey("ticket", AdmissionSlot)


@web.middleware
async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: refuse early, and let the rest pass a few at a time."""
    operation, app = request[OPERATION], request.app
    if not (operation.generates or operation.rationed or operation.counts):
        return await handler(request)
    if app[LIFE].draining and not operation.counts:
        raise shutting_down()
    if operation.generates:
        await app[PENDING].turns.turn()
    request[TICKET], status = (ticket := AdmissionSlot(request, operation)), 200
    try:
        response = await handler(request)
        status = response.status
        return response
    except ApiError as error:
        status = error.status
        note_code(request, error)
        raise
    finally:
        ticket.close(refused=status == 429 or is_refused(request, status))


Wanted = tuple[Submission, LengthQuery, Prediction | None]  # an answer, and the length that was asked for


def submit(app: web.Application, record: Record, answers: Sequence[Wanted]) -> list[Request]:
    """Raises ApiError 429 or 503."""
    dispatcher = app[DISPATCHER]
    try:
        requests = dispatcher.submit_all([one[0] for one in answers], arrival=record.arrival, since=record.since)
    except Refused as error:
        raise _refusal(error, dispatcher, answers[0][0][2].get("promised")) from None
    for request, (_, query, prediction) in zip(requests, answers, strict=True):
        app[LENGTHS].note(request, query, prediction, dispatcher.revise)
    return requests


def foresee_end(dispatcher: Dispatcher, requests: Sequence[Request]) -> Expectation:
    """With an end that can be asked for."""
    now = dispatcher.now()
    told, last = expectation_of(requests, now), find_last(requests)
    try:
        dispatcher.admission.promise_all(requests)
    except Refused as error:
        return msgspec.structs.replace(told, refused=_refusal(error, dispatcher).code)
    if last is None or requests[0].promised is not None:
        return told
    return msgspec.structs.replace(told, by=write_time(askable(last.by, now) - now))


def _refusal(error: Refused, dispatcher: Dispatcher, promised: float | None = None) -> ApiError:
    match error:
        case TooLate():
            message = f"{error}; try again later, or give it more time"
            return replace(busy(message, "deadline_unreachable", dispatcher.waits.retry_after()), param="deadline_ms")
        case Unpromised():
            return unpromised(error, promised or 0.0, dispatcher.now())
    return failure_error(error.failure, str(error))


def check_tokens(tokens: int, limits: FrontConfig, dispatcher: Dispatcher) -> None:
    """Raises ApiError 429 when they do not fit behind waiting ones."""
    most, waiting = limits.max_num_queued_tokens, dispatcher.table.tokens_waiting
    if most is not None and waiting and waiting + tokens > most:
        message = f"{waiting} tokens wait already, with these {tokens} it would be more than {most}"
        raise _full(f"{message} (--max-num-queued-tokens)", dispatcher)


def _full(reason: str, dispatcher: Dispatcher) -> ApiError:
    return busy(f"the queue is full: {reason}; try again later", "queue_full", dispatcher.waits.retry_after())
