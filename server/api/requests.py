"""GET /v1/requests, GET /v1/requests/{id}, POST /v1/requests/{id}/cancel: what is under way, and breaking it off."""

from __future__ import annotations

import asyncio

from aiohttp import web

from server.api.calls.register import HISTORY, REGISTER
from server.api.calls.request_status import RequestList, RequestStatus
from server.api.errors import ApiError, bad_request
from server.api.output.reply import json_response
from server.http.access import holder_of

LISTED = 100
"""Calls in a list whose request does not say how many."""

MOST_ROW = 999_999_999
"""Largest number of a row that may be asked for."""

PIECE = 20
"""Answers that are looked up in one turn of the event loop, in some milliseconds; the last call may have more."""


async def list_requests(request: web.Request) -> web.Response:
    """List the caller's requests, the latest first: those under way, then those that have ended lately; with `row` the
    one under way that has this row of the dashboard, and what it waits for.

    Raises ApiError 400.
    """
    register, holder, found = request.app[REGISTER], holder_of(request), list[RequestStatus]()
    if "row" in request.query:
        status = register.explain_row(_read_number(request, "row", 0, MOST_ROW), holder)
        return json_response(RequestList([] if status is None else [status]))
    looked_up = 0
    for status in register.iter_latest(holder, _read_number(request, "limit", 1, HISTORY, LISTED)):
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
    told = register.explain if _wants_reason(request) else register.status
    return _respond(name, told(name, holder_of(request)))


async def cancel_request(request: web.Request) -> web.Response:
    """Break a request off and free its rows; one that has ended stays as it is; raises ApiError 404."""
    name = request.match_info["id"]
    return _respond(name, request.app[REGISTER].cancel(name, holder_of(request)))


def _respond(name: str, status: RequestStatus | None) -> web.Response:
    if status is None:
        message = f"id: no request {name[:200]!r} is under way or has ended lately"
        raise ApiError(404, message, param="id", code="request_not_found")
    return json_response(status)


def _wants_reason(request: web.Request) -> bool:
    text = request.query.get("explain", "0")
    if text not in ("0", "1"):
        raise bad_request("explain: must be 1, to be told what the request waits for, or 0", "explain", "invalid_value")
    return text == "1"


def _read_number(request: web.Request, name: str, least: int, most: int, default: int = 0) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise bad_request(f"{name}: must be a whole number from {least} to {most}", name, "invalid_value")
    return int(text)
