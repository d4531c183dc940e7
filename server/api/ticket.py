"""A call's ticket: its room in the queue and its part of a key's quota, from when it comes until it is over.

Whether there is room is decided before anything is read, parsed or tokenized, and its prompt is counted when it is
known. Nothing here waits for what is under way, so a refusal costs microseconds; it says when to come again.
"""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler

from scheduler.dispatcher import Dispatcher
from server.api.errors import ApiError, busy, shutting_down
from server.api.health import LIFE
from server.api.limits import LIMITS, PENDING, Limits
from server.api.operation import OPERATION
from server.api.served_model import DISPATCHER
from server.http.access import ACCESS, HOLDER


class Ticket:
    """The answers that a call asks for, as they count in the queue until they are in it, and in its key's quota."""

    def __init__(self, app: web.Application, account: str, *, generates: bool) -> None:
        self._limits, self._pending = app[LIMITS], app[PENDING]
        self._dispatcher, self._quota = app[DISPATCHER], app[ACCESS].quota
        self._generates = generates
        self._counted = 0  # answers that wait on their way to the queue
        self.account = account
        self._share = self._quota.enter(account, self._dispatcher.now())

    def count_body(self) -> None:
        """From now on, as its body has come whole, count the call as one that waits. Raises ApiError 429."""
        if self._generates:
            check_room(self._limits, self._dispatcher, self._pending.arrived)
            self._count(1)

    def count_answers(self, answers: int) -> None:
        """From now on count the call as the answers that it asks for. Raises ApiError 400, and 429 where they do not
        fit behind what waits; a call by itself always does."""
        self._quota.count_answers(self._share, answers)
        most, dispatcher = self._limits.max_num_queued_reqs, self._dispatcher
        others = dispatcher.table.requests_in_line + self._pending.arrived - self._counted
        together = others + answers
        if most is not None and others and together > most and together - dispatcher.waits.free_slots > most:
            message = f"{others} requests wait already, with these {answers} it would be more than {most}"
            raise _full(f"{message} (--max-num-queued-reqs)", dispatcher)
        if answers != self._counted:
            self._count(answers)

    def spend(self, tokens: int) -> None:
        """Count tokens that a call was told of."""
        self._quota.spend(self.account, tokens, self._dispatcher.now())

    def settle(self) -> None:
        """Count the call no longer as one on its way: it is in the queue, or over."""
        self._count(0)

    def close(self) -> None:
        """The call is over."""
        self._count(0)
        self._quota.leave(self._share)

    def _count(self, answers: int) -> None:
        self._pending.arrived += answers - self._counted
        self._counted = answers


TICKET = web.RequestKey("ticket", Ticket)


@web.middleware
async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn calls away that could not be served soon, or not at all. The others go on a few at a time: all that come in
    one instant would be read, encoded and queued before anything else runs."""
    operation, app = request.get(OPERATION), request.app
    if operation is None or not (operation.generates or operation.rationed or operation.counts):
        return await handler(request)
    if app[LIFE].draining and not operation.counts:
        raise shutting_down()
    if operation.generates:
        await app[PENDING].turns.turn()
        if (request.content_length or 0) <= app[LIMITS].max_body_bytes:  # else it is never welcome, and told so
            check_room(app[LIMITS], app[DISPATCHER], app[PENDING].arrived)
    # Who counts the tokens of each prompt before sending it has as many calls for that as for answers.
    account = f"{request[HOLDER]} counting" if operation.counts else request[HOLDER]
    request[TICKET] = ticket = Ticket(app, account, generates=operation.generates)
    try:
        return await handler(request)
    finally:
        ticket.close()


def check_room(limits: Limits, dispatcher: Dispatcher, arrived: int) -> None:
    """Raise ApiError 429 when the queue is full, with the answers that have arrived and are not in it yet."""
    most, tokens = limits.max_num_queued_reqs, limits.max_num_queued_tokens
    in_line = 0 if most is None else dispatcher.table.requests_in_line + arrived
    if most is not None and in_line >= most and in_line - dispatcher.waits.free_slots >= most:
        raise _full(f"{most} requests wait already (--max-num-queued-reqs)", dispatcher)
    if tokens is not None and dispatcher.table.tokens_waiting >= tokens:
        raise _full(f"{tokens} tokens wait already (--max-num-queued-tokens)", dispatcher)


def check_tokens(tokens: int, limits: Limits, dispatcher: Dispatcher) -> None:
    """Raise ApiError 429 when a call of this many tokens, prompt and answer, does not fit behind what waits."""
    most, waiting = limits.max_num_queued_tokens, dispatcher.table.tokens_waiting
    if most is not None and waiting and waiting + tokens > most:
        message = f"{waiting} tokens wait already, with these {tokens} it would be more than {most}"
        raise _full(f"{message} (--max-num-queued-tokens)", dispatcher)


def _full(reason: str, dispatcher: Dispatcher) -> ApiError:
    return busy(f"the queue is full: {reason}; try again later", "queue_full", dispatcher.waits.retry_after())
