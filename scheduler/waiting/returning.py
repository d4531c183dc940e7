"""Anticipatory slots for clients that return at once (Iyer and Druschel, SOSP 2001), for a tenth of the answer's time,
if the last return was in time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from scheduler.request import Request

PATIENCE = 0.1  # of the answer's seconds


@dataclass(eq=False, slots=True)
class _Client:
    requests: set[Request] = field(default_factory=set)
    executor: int = 0  # last
    returns: bool = False  # in time last
    until: float = -inf  # time


class SlotReservations:
    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}
        self._away: set[str] = set()  # without a request

    def come(self, request: Request) -> None:
        """Idempotent."""
        client = self._clients.setdefault(request.client, _Client())
        if not client.requests:
            client.returns = request.times.arrival <= client.until
            self._away.discard(request.client)
        client.requests.add(request)

    def run(self, requests: Iterable[Request], executor: int) -> None:
        for request in requests:
            self._clients[request.client].executor = executor

    def leave(self, request: Request) -> None:
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
        for name in [name for name in self._away if self._clients[name].until <= now]:
            self._away.remove(name)
            del self._clients[name]
        return sum(client.executor == executor for client in self._awaited())

    def next_end(self, now: float) -> float | None:
        return min((client.until for client in self._awaited() if client.until > now), default=None)

    def _awaited(self) -> Iterator[_Client]:
        return (client for name in self._away if (client := self._clients[name]).returns)
