"""A call's ticket: its room in the queue and its part of a key's quota, from when it comes until it is over.

Whether there is room is decided before anything is read, parsed or tokenized, and its prompt is counted when it is
known. Nothing here waits for what is under way, so a refusal costs microseconds; it says when to come again.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Handler

from engine.sampling.params import SamplingParams
from scheduler.dispatcher import Dispatcher, Known
from scheduler.length.features import LengthQuery
from scheduler.length.prediction import Prediction
from scheduler.request import Refused, Request, TooLate
from server.api.errors import ApiError, busy, failure_error, shutting_down
from server.api.health import LIFE
from server.api.limits import LIMITS, PENDING, Limits
from server.api.operation import OPERATION, Operation
from server.api.register import Record
from server.api.served_model import DISPATCHER, LENGTHS
from server.http.access import ACCESS, ALL, HOLDER


class Ticket:
    """The answers that a call asks for, as they count in the queue until they are in it, and in its key's quota."""

    def __init__(self, request: web.Request, operation: Operation) -> None:
        """Raises ApiError 429 where there is no room in the queue, or in the quota."""
        app = request.app
        self._limits, self._pending, self._dispatcher = app[LIMITS], app[PENDING], app[DISPATCHER]
        self._quota = app[ACCESS].quota
        self._counted = 0  # answers that wait on their way to the queue
        if operation.generates and (request.content_length or 0) <= self._limits.max_body_bytes:
            self.count_answers(1, arrived=False)  # what is larger is never welcome, and told so
        # Who counts the tokens of each prompt before sending it has as many calls for that as for answers.
        holder = request.get(HOLDER, ALL)
        self._account = f"{holder} counting" if operation.counts else holder
        self._share = self._quota.enter(self._account, self._dispatcher.now())

    def count_answers(self, answers: int, *, arrived: bool = True) -> None:
        """From now on count the call as the answers that it asks for, if its body has `arrived` whole. Raises ApiError
        400, and 429 where they do not fit behind what waits, those included that have arrived and are not in the queue
        yet; a call by itself always does."""
        dispatcher, limits = self._dispatcher, self._limits
        if answers > 1:
            self._quota.count_answers(self._share, answers)
        if (most := limits.max_num_queued_reqs) is not None:
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
        """Count tokens that a call was told of."""
        self._quota.spend(self._account, tokens, self._dispatcher.now())

    def settle(self) -> None:
        """Count the call no longer as one on its way: it is in the queue, or over."""
        self._pending.arrived -= self._counted
        self._counted = 0

    def close(self) -> None:
        """The call is over."""
        self.settle()
        self._quota.leave(self._share)


TICKET = web.RequestKey("ticket", Ticket)


@web.middleware
async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn calls away that could not be served soon, or not at all. The others go on a few at a time: all that come in
    one instant would be read, encoded and queued before anything else runs."""
    operation, app = request[OPERATION], request.app
    if not (operation.generates or operation.rationed or operation.counts):
        return await handler(request)
    if app[LIFE].draining and not operation.counts:
        raise shutting_down()
    if operation.generates:
        await app[PENDING].turns.turn()
    request[TICKET] = ticket = Ticket(request, operation)
    try:
        return await handler(request)
    finally:
        ticket.close()


def submit(
    app: web.Application,
    record: Record,
    prompt: Sequence[int],
    sampling: SamplingParams,
    query: LengthQuery,
    prediction: Prediction | None,
    known: Known,
) -> Request:
    """Put an answer in line whose length was asked for; raises ApiError 429 or 503."""
    dispatcher = app[DISPATCHER]
    try:
        request = dispatcher.submit(prompt, sampling, arrival=record.arrival, since=record.since, **known)
    except TooLate as error:
        message = f"{error}; try again later, or give it more time"
        raise busy(message, "deadline_unreachable", dispatcher.waits.retry_after()) from None
    except Refused as error:
        raise failure_error(error.failure, str(error)) from None
    app[LENGTHS].note(request, query, prediction, dispatcher.revise)
    return request


def check_tokens(tokens: int, limits: Limits, dispatcher: Dispatcher) -> None:
    """Raise ApiError 429 when a call of this many tokens, prompt and answer, does not fit behind what waits."""
    most, waiting = limits.max_num_queued_tokens, dispatcher.table.tokens_waiting
    if most is not None and waiting and waiting + tokens > most:
        message = f"{waiting} tokens wait already, with these {tokens} it would be more than {most}"
        raise _full(f"{message} (--max-num-queued-tokens)", dispatcher)


def _full(reason: str, dispatcher: Dispatcher) -> ApiError:
    return busy(f"the queue is full: {reason}; try again later", "queue_full", dispatcher.waits.retry_after())
