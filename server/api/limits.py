"""Bounds of calls, and calls not yet in the queue."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

from aiohttp import web

from scheduler.stream import SLICE, Wakeups


@dataclass(frozen=True, slots=True)
class Limits:
    """Durations are seconds, sizes bytes."""

    max_body_bytes: int = 4 * 1024 * 1024
    body_timeout: float = 10.0  # for a body to arrive
    send_timeout: float = 30.0  # a client may leave a stream unread
    sse_keep_alive_interval: float = 15.0  # silence before a blank line, or an event where clients count them; 0: none
    place_interval: float = 1.0  # between looks at a place in line
    max_num_queued_reqs: int | None = None  # a call is refused beyond these
    max_num_queued_tokens: int | None = None  # prompts, and predicted or longest answers
    max_file_bytes: int = 100 * 1024 * 1024
    stored_response_bytes: int = 64 * 1024 * 1024  # of responses kept for later ones

    @classmethod
    def of(cls, config: object) -> Limits:
        """Missing settings keep their defaults."""
        return cls(**{one.name: getattr(config, one.name) for one in fields(cls) if hasattr(config, one.name)})


@dataclass(slots=True)
class PendingCalls:
    """Event loop only."""

    arrived: int = 0  # answers asked for; one until the body is read
    body_bytes: Counter[str] = field(default_factory=Counter)  # held until parsed, by sender
    turns: Wakeups = field(default_factory=lambda: Wakeups(SLICE / 5))  # of reading, parsing, encoding, queueing


LIMITS = web.AppKey("limits", Limits)
PENDING = web.AppKey("pending", PendingCalls)
