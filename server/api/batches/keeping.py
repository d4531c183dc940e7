"""Where batches and their files are, for handlers, and the pages of a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec
from aiohttp import web

from server.api.errors import ApiError, bad_request
from server.batches.batches import Batches

BATCHES = web.AppKey("batches", Batches)


async def start_batches(app: web.Application) -> None:
    """Go on with what an earlier server left."""
    if BATCHES in app:
        app[BATCHES].start()


async def stop_batches(app: web.Application) -> None:
    """Break batches off, so that the server can end; another goes on with them."""
    if BATCHES in app:
        await app[BATCHES].stop()


MOST = 10_000
"""Entries of a page at most."""


class Named(Protocol):
    """An entry of a list."""

    @property
    def id(self) -> str: ...


N = TypeVar("N", bound=Named)


class ListPage(msgspec.Struct, Generic[N], frozen=True):
    """A page of a list, as OpenAI words it."""

    data: list[N]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


P = TypeVar("P", bound=ListPage[Any])


def batches_of(request: web.Request) -> Batches:
    """The server's batches; raises ApiError 404 where it keeps none."""
    if BATCHES not in request.app:
        message = "this server keeps no files; its log tells why, unless it was started with --files-size 0"
        raise ApiError(404, message, code="no_files")
    return request.app[BATCHES]


def page_of(request: web.Request, entries: Sequence[Named], shape: type[P]) -> P:
    """The entries after the query's `after`, its `limit` at most, as `shape`; raises ApiError 400."""
    after, limit = request.query.get("after"), request.query.get("limit", "20")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 10 and 1 <= int(limit) <= MOST):
        raise bad_request(f"limit: must be a whole number from 1 to {MOST}", "limit", "invalid_value")
    begin = 0
    if after is not None:
        places = [place for place, entry in enumerate(entries) if entry.id == after]
        if not places:
            raise bad_request(f"after: there is no {after[:200]!r}", "after", "invalid_value")
        begin = places[0] + 1
    page = list(entries[begin : begin + int(limit)])
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return shape(page, first, last, begin + len(page) < len(entries))
