"""Slots that are kept for clients who come back at once, as an agent does whose next call hangs on the last answer
(anticipatory scheduling; Iyer and Druschel, SOSP 2001).

Beside a client whose calls always wait, one with a single call at a time finds all slots taken whenever it comes, and
waits for a row to end before each answer, although it asks for less than its share. So the slot of its answer is kept
for it: if it was back in time after the answer before, and for at most a tenth of the time that the answer took. That
is the bound on what it costs: a tenth of what such clients are served.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from scheduler.request import Request

PATIENCE = 0.1
"""Seconds for which a slot is kept, for each second that the client's answer took."""


@dataclass(eq=False, slots=True)
class _Client:
    requests: set[Request] = field(default_factory=set)
    """Those that wait or run."""
    executor: int = 0
    """Where the last one ran."""
    returns: bool = False
    """Whether it came back in time after the answer before."""
    until: float = -inf
    """When it is too late to come back, in seconds of the clock."""


class Returning:
    """Follows the requests of clients; those whose last one has ended are looked for when it is asked."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}  # with a request, or not yet too late
        self._away: set[str] = set()  # those of them without a request
        self._running: set[Request] = set()

    def come(self, request: Request) -> None:
        """A request waits; may be said again."""
        self._settle()
        client = self._clients.setdefault(request.client, _Client())
        if not client.requests:
            client.returns = request.times.arrival <= client.until
            self._away.discard(request.client)
        client.requests.add(request)

    def run(self, requests: Iterable[Request], executor: int) -> None:
        """Requests go to an executor."""
        for request in requests:
            self._clients[request.client].executor = executor
            self._running.add(request)

    def leave(self, request: Request) -> None:
        """A request waits no more, and does not run."""
        client = self._clients.get(request.client)
        if client is None or request not in client.requests:
            return
        client.requests.remove(request)
        if not client.requests:
            start, end = request.times.started, request.times.end
            if start is not None and end is not None and request.priority <= 0:
                client.until = end + PATIENCE * (end - start)
            self._away.add(request.client)

    def kept(self, executor: int, now: float) -> int:
        """Slots of an executor that are kept."""
        self._settle()
        for name in [name for name in self._away if self._clients[name].until <= now]:
            self._away.remove(name)
            del self._clients[name]
        return sum(client.executor == executor for client in self._awaited())

    def next_end(self, now: float) -> float | None:
        """When the next slot is given up, in seconds of the clock; None where none is kept."""
        return min((client.until for client in self._awaited() if client.until > now), default=None)

    def _awaited(self) -> Iterator[_Client]:
        return (client for name in self._away if (client := self._clients[name]).returns)

    def _settle(self) -> None:
        """Note which requests have ended."""
        for request in [one for one in self._running if one.state.is_final]:
            self._running.remove(request)
            self.leave(request)
