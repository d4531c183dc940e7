"""Admission of calls to the queue: decided when a call comes, before anything is read, parsed or tokenized.

A call's prompt is counted when it is known. Nothing here waits for what is under way, so a refusal costs microseconds;
it says when to come again.
"""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler

from scheduler.dispatcher import Dispatcher
from server.api.errors import ApiError, busy, shutting_down
from server.api.generator import DISPATCHER
from server.api.health import LIFE
from server.api.limits import LIMITS, PENDING, Limits
from server.api.operation import generates, is_rationed


class Admission:
    """A call between its arrival and the queue."""

    def __init__(self, app: web.Application) -> None:
        self._limits = app[LIMITS]
        self._dispatcher = app[DISPATCHER]
        self._pending = app[PENDING]
        self._counted = 0

    def check(self) -> None:
        """Raise ApiError 429 when the queue is full."""
        limits, dispatcher = self._limits, self._dispatcher
        most, tokens = limits.max_num_queued_reqs, limits.max_num_queued_tokens
        ahead = dispatcher.requests_in_line + self._pending.arrived - dispatcher.free_slots
        if most is not None and ahead >= most:
            raise _full(f"{most} requests wait already (--max-num-queued-reqs)", dispatcher)
        if tokens is not None and dispatcher.tokens_waiting >= tokens:
            raise _full(f"{tokens} tokens wait already (--max-num-queued-tokens)", dispatcher)

    def count_arrived(self) -> None:
        """From now on, as its body has come whole, count the call as one that waits. Raises ApiError 429."""
        self.check()
        self._count(1)

    def count_answers(self, answers: int) -> None:
        """From now on count the call as the answers that it asks for. Raises ApiError 429 where they do not fit behind
        what waits; a call by itself always does."""
        most, others = (
            self._limits.max_num_queued_reqs,
            self._dispatcher.requests_in_line + self._pending.arrived - self._counted,
        )
        if most is not None and others and others + answers - self._dispatcher.free_slots > most:
            message = f"{others} requests wait already, with these {answers} it would be more than {most}"
            raise _full(f"{message} (--max-num-queued-reqs)", self._dispatcher)
        self._count(answers)

    def _count(self, answers: int) -> None:
        self._pending.arrived += answers - self._counted
        self._counted = answers

    def settle(self) -> None:
        """Count the call no longer: it is in the queue, or over."""
        self._count(0)


_ADMISSION = web.RequestKey("admission", Admission)


def check_tokens(tokens: int, limits: Limits, dispatcher: Dispatcher) -> None:
    """Raise ApiError 429 when a call of so many tokens, prompt and answer, does not fit behind what waits."""
    most, waiting = limits.max_num_queued_tokens, dispatcher.tokens_waiting
    if most is not None and waiting and waiting + tokens > most:
        message = f"{waiting} tokens wait already, with these {tokens} it would be more than {most}"
        raise _full(f"{message} (--max-num-queued-tokens)", dispatcher)


def _full(reason: str, dispatcher: Dispatcher) -> ApiError:
    return busy(f"the queue is full: {reason}; try again later", "queue_full", dispatcher.retry_after())


def count_arrived(request: web.Request) -> None:
    """Count a call whose body has come whole as one that waits. Raises ApiError 429."""
    if _ADMISSION in request:
        request[_ADMISSION].count_arrived()


def count_answers(request: web.Request, answers: int) -> None:
    """Count a call as the answers that it asks for. Raises ApiError 400 or 429."""
    if _ADMISSION in request:
        request[_ADMISSION].count_answers(answers)


def count_queued(request: web.Request) -> None:
    """Count a call no longer that is in the queue, which counts it itself."""
    if _ADMISSION in request:
        request[_ADMISSION].settle()


@web.middleware
async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn calls away that could not be served soon, or not at all. The others go on a few at a time: all that come in
    one instant would be read, encoded and queued before anything else runs."""
    if is_rationed(request) and request.app[LIFE].draining:
        raise shutting_down()
    if not generates(request):
        return await handler(request)
    await request.app[PENDING].turns.turn()
    request[_ADMISSION] = admission = Admission(request.app)
    if (request.content_length or 0) <= request.app[LIMITS].max_body_bytes:  # else it is never welcome, and told so
        admission.check()
    try:
        return await handler(request)
    finally:
        admission.settle()
