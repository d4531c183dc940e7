"""Bounds of a client's calls, and the number of calls on their way to the queue."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

from aiohttp import web

from scheduler.stream import Wakeups


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of bodies, streams and the queue. Durations are seconds, sizes bytes."""

    max_body_bytes: int = 4 * 1024 * 1024
    body_timeout: float = 10.0
    """How long a request's body may take to arrive."""
    send_timeout: float = 30.0
    """How long a client may leave a stream unread before its request is cancelled."""
    sse_keep_alive_interval: float = 15.0
    """Silence after which a stream gets a blank line, or an event where clients count them; 0 sends none."""
    place_interval: float = 1.0
    """How often a stream that asks for its progress looks for its place in line, to tell it when that has changed."""
    max_num_queued_reqs: int | None = None
    """Requests that may wait; a call that comes when so many do is refused."""
    max_num_queued_tokens: int | None = None
    """Tokens that may wait: those of prompts, and of answers as they are predicted, or else may become."""
    max_file_bytes: int = 100 * 1024 * 1024
    """Largest file that a client may send."""
    stored_response_bytes: int = 64 * 1024 * 1024
    """Bytes of responses that are kept so that later ones may go on from them."""

    @classmethod
    def of(cls, config: object) -> Limits:
        """The bounds that settings of these names say; the others keep their defaults."""
        return cls(**{one.name: getattr(config, one.name) for one in fields(cls) if hasattr(config, one.name)})


@dataclass(slots=True)
class PendingCalls:
    """Calls that have not come to the queue yet. Event loop only."""

    arrived: int = 0
    """Answers that calls whose bodies have come ask for; of a body that has not been read, one."""
    body_bytes: Counter[str] = field(default_factory=Counter)
    """Bytes of bodies that are held until they are parsed, by the sender."""
    turns: Wakeups = field(default_factory=Wakeups)
    """Lets calls go on to be read, parsed, encoded and queued, which takes most of them one iteration of the loop."""


LIMITS = web.AppKey("limits", Limits)
PENDING = web.AppKey("pending", PendingCalls)
