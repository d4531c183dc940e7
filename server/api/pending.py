"""Calls not yet in the queue."""

from collections import Counter
from dataclasses import dataclass, field

from aiohttp import web

from scheduler.stream import SLICE, Wakeups


@dataclass(slots=True)
class PendingCalls:
    """Event loop only."""

    arrived: int = 0  # answers asked for; one until the body is read
    body_bytes: Counter[str] = field(default_factory=Counter)  # held until parsed, by sender
    turns: Wakeups = field(default_factory=lambda: Wakeups(SLICE / 5))  # of reading, parsing, encoding, queueing


PENDING = web.AppKey("pending", PendingCalls)
