"""GET /load: what a router shall know of this server to rank it beside others (scheduler/placement.py)."""

from __future__ import annotations

import msgspec
from aiohttp import web

from scheduler.waiting.prices import Prices
from server.api.generator import DISPATCHER
from server.api.output.reply import json_response


class Load(msgspec.Struct, frozen=True):
    """The server's load as it was `age_s` seconds ago: seconds until all that it had would be answered, prices of rows,
    how many requests that were, the rows that it runs at a time, and tokens of its recent answers, null before the
    first."""

    age_s: float
    work_s: float
    prices: Prices
    requests: int
    slots: int
    mean_output_tokens: float | None


async def load(request: web.Request) -> web.Response:
    """Tell how much there is to do, and what a request would add to that."""
    dispatcher = request.app[DISPATCHER]
    told = dispatcher.load()
    age = dispatcher.now() - told.at
    return json_response(Load(age, told.work, told.prices, told.requests, told.slots, told.length))
