"""Calls under way and recently ended; cancellation; /v1/requests. Event loop only."""

import asyncio
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from math import inf
from operator import itemgetter
from typing import Any

import msgspec
from aiohttp import web

from engine.messages import FinishReason, RowId, RowUpdate
from models.recent import Recent
from scheduler.dispatcher import Dispatcher
from scheduler.programs.program import Program
from scheduler.request import Request
from server.access import HOLDER, client_of, holder_of
from server.api import request_status as statuses
from server.api.errors import ApiError, invalid
from server.api.output.reply import Metrics, expectation_of, json_response
from server.api.output.sse import HEADER as PROGRESS
from server.api.request_status import CallState, RequestList, RequestStatus
from server.api.served_model import DISPATCHER
from server.request_id import request_id

HISTORY = 1000  # ended calls remembered

RETURN_TIME = 60.0  # seconds in which a returning call keeps its place
REPEATS = ("idempotency-key", "x-client-request-id")  # headers that name repeated calls

CANCELLED = "the request was cancelled by its id"

ESTIMATE = "x-lengthwise-estimate"  # request header that asks for an estimate in `metrics`, with the value 1

SAME = ("id", "request_id", "caller", "endpoint", "model", "created", "stream")  # in a status as in the record


@dataclass(eq=False, slots=True)
class Record:
    """Changed by the register only, but for `requests`."""

    id: str
    caller: str | None  # names the API key; None without
    request_id: str  # the client's
    endpoint: str
    model: str
    stream: bool
    arrival: float
    requests: tuple[Request, ...] = ()
    cancelled: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    client: str = ""  # for fair sharing; the holder with keys
    asks: frozenset[str] = frozenset()  # request headers that ask for more
    repeats: str = ""  # the client's name for repeats
    since: float | None = None  # original arrival after a return
    broken_off: bool = False  # client left before the end
    program: Program | None = None
    answer_id: str = ""  # a backend's, where the call has another

    @classmethod
    def of(cls, request: web.Request, prefix: str, model: str, user: str | None, *, stream: bool) -> "Record":
        """Its id begins with `prefix`. Raises ApiError 400."""
        asked = {name: request.headers.get(name, "0") for name in (ESTIMATE, PROGRESS)}
        for name, value in asked.items():
            if value not in ("0", "1"):
                raise invalid(name, f"must be 0 or 1, not {value[:200]!r}")
        return cls(
            f"{prefix}{secrets.token_hex(16)}",
            request.get(HOLDER),
            request_id(request),
            request.path,
            model,
            stream,
            request.app[DISPATCHER].now(),
            client=client_of(request, user),
            repeats=next((request.headers[name] for name in REPEATS if name in request.headers), ""),
            asks=frozenset(name for name, value in asked.items() if value == "1"),
        )

    def leave(self) -> None:
        """Note whether it left early."""
        self.broken_off = any(not request.state.is_final for request in self.requests)

    def check(self) -> None:
        """Raises ApiError 499 when cancelled by its id."""
        if self.cancelled:
            raise ApiError(499, CANCELLED)


class Register:
    """By a call's own id, or the latest by its answer's or client's; a holder sees only its own calls."""

    def __init__(self, dispatcher: Dispatcher, history: int = HISTORY) -> None:
        self._dispatcher = dispatcher
        self._open: dict[str, Record] = {}
        self._ended = Recent[str, RequestStatus](history)
        self._left = Recent[tuple[str, str], tuple[float, float]](history)  # place, and when broken off

    def __len__(self) -> int:
        """Under way."""
        return len(self._open)

    @contextmanager
    def enter(self, record: Record) -> Iterator[Record]:
        """Inside the context, and remembered afterwards."""
        self._open[record.id] = record
        name = (record.client, record.repeats)
        since, left = self._left.pop(name, (0.0, -inf))
        record.since = since if record.arrival - left <= RETURN_TIME else None
        try:
            yield record
        finally:
            del self._open[record.id]
            if record.broken_off and record.repeats:
                self._left[name] = (record.arrival if record.since is None else record.since, self._dispatcher.now())
            if record.requests or record.cancelled:  # ignore calls refused before the queue
                self._ended[record.id] = self._status(record)

    def status(self, name: str, holder: str | None, *, explained: bool = False) -> RequestStatus | None:
        """`explained` adds why it waits; None for an unknown or foreign call."""
        if isinstance(found := self._find(name, holder), Record):
            return self._status(found, explained=explained)
        return msgspec.structs.replace(found, waits_for=None) if found is not None and explained else found

    def _own(self, holder: str | None) -> list[Record]:
        return [one for one in reversed(self._open.values()) if one.caller == holder]

    def explain_row(self, row: RowId, holder: str | None) -> RequestStatus | None:
        found = (one for one in self._own(holder) if any(request.row_id == row for request in one.requests))
        return next((self._status(one, explained=True) for one in found), None)

    def cancel(self, name: str, holder: str | None) -> RequestStatus | None:
        """What has ended stays. None as for `status`."""
        if isinstance(found := self._find(name, holder), Record):
            open_requests = [request for request in found.requests if not request.state.is_final]
            # Complete answers are on their way.
            found.cancelled = found.cancelled or not found.requests or bool(open_requests)
            for request in open_requests:
                self._dispatcher.cancel(request)
                # The scheduler drops the reader, but the client still reads.
                request.stream.put(RowUpdate(request.row_id, finish_reason=FinishReason.ERROR, error=CANCELLED))
        return self.status(name, holder)

    def iter_latest(self, holder: str | None, limit: int) -> Iterator[RequestStatus]:
        """Under way, then ended, latest first; computed on demand."""
        own = self._own(holder)[:limit]
        past = (ended for ended in reversed(self._ended.values()) if ended.caller == holder)
        return chain(map(self._status, own), [*islice(past, limit - len(own))])

    def _find(self, name: str, holder: str | None) -> Record | RequestStatus | None:
        """By id, or the latest that is named so, under way before ended."""
        found: Record | RequestStatus | None = self._open.get(name) or self._ended.get(name)
        if found is not None:
            return found if found.caller == holder else None
        calls: Iterable[Record | RequestStatus] = chain(reversed(self._open.values()), reversed(self._ended.values()))
        return next((one for one in calls if one.caller == holder and name in (one.request_id, one.answer_id)), None)

    def _status(self, record: Record, *, explained: bool = False) -> RequestStatus:
        requests = record.requests
        state = CallState.CANCELLED if record.cancelled else statuses.call_state(requests)
        choices = [statuses.choice_of(index, request, self._dispatcher) for index, request in enumerate(requests)]
        waits = state is CallState.WAITING
        places = [(one.place, one.expected_wait_s) for one in choices if waits and one.place is not None]
        place, wait = min(places, key=itemgetter(0), default=(None, None))
        ends = [request.times.end for request in requests if request.times.end is not None]
        end = max(ends) if requests and len(ends) == len(requests) else self._dispatcher.now()
        told: dict[str, Any] = {name: getattr(record, name) for name in SAME}
        if explained:
            others = [one for one in self._own(record.caller) if one is not record]
            own = {request: one.id for one in others for request in one.requests}
            told["waits_for"] = statuses.explain_wait(requests, own, self._dispatcher)
        return RequestStatus(
            **told,
            answer_id=record.answer_id or msgspec.UNSET,
            state=state,
            place=place,
            expected_wait_s=wait,
            age_s=round(end - record.arrival, 3),
            prompt_tokens=sum(len(prompt) for prompt in {id(each.prompt): each.prompt for each in requests}.values()),
            max_tokens=sum(request.sampling.max_tokens for request in requests),
            generated_tokens=sum(request.generated for request in requests),
            metrics=statuses.measure(requests) if requests else Metrics(None, None, None),
            estimate=expectation_of(requests, self._dispatcher.now(), run=True) if requests else None,
            choices=choices,
        )


REGISTER = web.AppKey("register", Register)

CALL = web.RequestKey("call", str)  # own id; X-Request-Ids may repeat


LISTED = 100  # default limit

MOST_ROW = 999_999_999

PIECE = 20  # answers looked up in one turn of the event loop, some milliseconds


async def list_requests(request: web.Request) -> web.Response:
    """List the caller's requests, the latest first: those under way, then those that have ended lately; with `row` the
    one under way that has this row of the dashboard, and what it waits for.

    Raises ApiError 400.
    """
    register, holder, found = request.app[REGISTER], holder_of(request), list[RequestStatus]()
    read_number(request, "explain", 0, 1)
    if "row" in request.query:
        status = register.explain_row(read_number(request, "row", 0, MOST_ROW), holder)
        return json_response(RequestList([] if status is None else [status]))
    looked_up = 0
    for status in register.iter_latest(holder, read_number(request, "limit", 1, HISTORY, LISTED)):
        found.append(status)
        looked_up += len(status.choices)
        if looked_up >= PIECE:
            looked_up = 0
            await asyncio.sleep(0)
    return json_response(RequestList(found))


async def show_request(request: web.Request) -> web.Response:
    """Show how a request stands: its place in line, expected wait, tokens and times, and with `explain=1` what it
    waits for; raises ApiError 400 and 404.
    """
    name, register = request.match_info["id"], request.app[REGISTER]
    explained = read_number(request, "explain", 0, 1) == 1
    return _respond(name, register.status(name, holder_of(request), explained=explained))


async def cancel_request(request: web.Request) -> web.Response:
    """Break a request off and free its rows; one that has ended stays as it is; raises ApiError 404."""
    name = request.match_info["id"]
    return _respond(name, request.app[REGISTER].cancel(name, holder_of(request)))


def _respond(name: str, status: RequestStatus | None) -> web.Response:
    if status is None:
        fault = f"no request {name[:200]!r} is under way or has ended lately"
        raise invalid("id", fault, "request_not_found", status=404)
    return json_response(status)


def read_number(request: web.Request, name: str, least: int, most: int, default: int = 0) -> int:
    """Of the query; raises ApiError 400."""
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise invalid(name, f"must be a whole number from {least} to {most}", "invalid_value")
    return int(text)
