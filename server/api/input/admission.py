"""Who may join the queue: decided by its length when a call comes, before anything is read, parsed or tokenized.

A call's prompt is counted when it is known. Nothing here waits, so a refusal costs microseconds however much is
under way; who is refused is told when to come again.
"""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler

from server.api.calls.failures import shutting_down
from server.api.errors import ApiError, busy
from server.api.health import LIFE
from server.api.service import SERVICE, Service

GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
"""Paths of calls that end in the queue."""


class Admission:
    """A call between its arrival and the queue."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._counted = False

    def check(self) -> None:
        """Raise ApiError 429 when the queue is full."""
        limits, dispatcher = self._service.limits, self._service.dispatcher
        most, tokens = limits.max_num_queued_reqs, limits.max_num_queued_tokens
        ahead = dispatcher.requests_queued + self._service.crowd.pending - dispatcher.free_slots
        if most is not None and ahead >= most:
            raise _full(f"{most} requests wait already (--max-num-queued-reqs)", self._service)
        if tokens is not None and dispatcher.tokens_waiting >= tokens:
            raise _full(f"{tokens} tokens wait already (--max-num-queued-tokens)", self._service)

    def arrived(self) -> None:
        """The body has come whole: from now on the call counts as one that waits. Raises ApiError 429."""
        self.check()
        self._counted = True
        self._service.crowd.pending += 1

    def settle(self) -> None:
        """The call is in the queue, or over."""
        if self._counted:
            self._counted = False
            self._service.crowd.pending -= 1


_TICKET = web.RequestKey("ticket", Admission)


def check_tokens(tokens: int, service: Service) -> None:
    """Raise ApiError 429 when a call of so many tokens, prompt and answer, does not fit behind what waits."""
    most, waiting = service.limits.max_num_queued_tokens, service.dispatcher.tokens_waiting
    if most is not None and waiting and waiting + tokens > most:
        message = f"{waiting} tokens wait already, with these {tokens} it would be more than {most}"
        raise _full(f"{message} (--max-num-queued-tokens)", service)


def _full(reason: str, service: Service) -> ApiError:
    return busy(f"the queue is full: {reason}; try again later", "queue_full", service.dispatcher.retry_after())


def generates(request: web.Request) -> bool:
    """Whether a call will ask for a place in the queue."""
    resource = request.match_info.route.resource
    return request.method == "POST" and resource is not None and resource.canonical in GENERATING


def arrived(request: web.Request) -> None:
    """The body of a request has come whole. Raises ApiError 429."""
    if _TICKET in request:
        request[_TICKET].arrived()


def queued(request: web.Request) -> None:
    """The call of a request is in the queue."""
    if _TICKET in request:
        request[_TICKET].settle()


@web.middleware
async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn calls away that could not be served soon, or not at all."""
    if not generates(request):
        return await handler(request)
    if request.app[LIFE].draining:
        raise shutting_down()
    service = request.app[SERVICE]
    request[_TICKET] = ticket = Admission(service)
    if (request.content_length or 0) <= service.limits.max_body_bytes:  # else it is never welcome, and told so
        ticket.check()
    try:
        return await handler(request)
    finally:
        ticket.settle()
