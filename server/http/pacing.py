"""Refused calls, answered one after another while rows run.

A sender whose calls are refused sends the next at once, thousands a second; executors, which ask for the interpreter at
each product, would wait for it as often as calls come.
"""

from __future__ import annotations

from asyncio import sleep
from collections import OrderedDict

from aiohttp import web
from aiohttp.typedefs import Handler

from server.api.generator import DISPATCHER
from server.http.access import sender_of

INTERVAL = 0.02
"""Seconds between two refusals of one sender."""

BURST = 10
"""Refusals of one sender that need not wait."""

LONGEST = 1.0
"""Seconds that a refusal waits at most."""

SENDERS = 1024
"""Senders that are remembered: those refused last."""

UNPACED = (429, 499)
"""Statuses that are told at once: the call may come again later, or is over."""


class Pace:
    """When the next refusal of each sender is due, at a constant rate with bursts (a leaky bucket). Event loop only."""

    def __init__(self) -> None:
        self._due: OrderedDict[str, float] = OrderedDict()

    def wait(self, sender: str, now: float) -> float:
        """Seconds that a refusal of this sender waits; it is counted."""
        due = max(self._due.pop(sender, now), now) + INTERVAL
        seconds = min(max(0.0, due - now - BURST * INTERVAL), LONGEST)
        self._due[sender] = now + seconds + BURST * INTERVAL if seconds else due
        if len(self._due) > SENDERS:
            self._due.popitem(last=False)
        return seconds


PACE = web.AppKey("pace", Pace)


@web.middleware
async def pace_refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let refusals that follow one another fast wait, where rows run that they would disturb."""
    response = await handler(request)
    dispatcher = request.app[DISPATCHER]
    if 400 <= response.status < 500 and response.status not in UNPACED and dispatcher.requests_running:
        await sleep(request.app[PACE].wait(sender_of(request), dispatcher.now()))
    return response
