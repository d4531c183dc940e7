"""Slots reserved for clients that come back at once, as agents do (anticipatory scheduling; Iyer and Druschel, SOSP
2001).

A client with one call at a time, beside one that always queues, would wait for a row's end before each answer. So its
slot is kept, if it was back in time last time, for at most a tenth of its answer's time: the bound on the cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from scheduler.request import Request

PATIENCE = 0.1  # seconds a slot is kept for each second of the answer


@dataclass(eq=False, slots=True)
class _Client:
    requests: set[Request] = field(default_factory=set)  # waiting or running
    executor: int = 0  # of the last one
    returns: bool = False  # was back in time last time
    until: float = -inf  # seconds of the clock


class SlotReservations:
    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}  # with a request, or not too late yet
        self._away: set[str] = set()  # of these, without a request
        self._running: set[Request] = set()

    def come(self, request: Request) -> None:
        """A request waits; may be repeated."""
        self._settle()
        client = self._clients.setdefault(request.client, _Client())
        if not client.requests:
            client.returns = request.times.arrival <= client.until
            self._away.discard(request.client)
        client.requests.add(request)

    def run(self, requests: Iterable[Request], executor: int) -> None:
        for request in requests:
            self._clients[request.client].executor = executor
            self._running.add(request)

    def leave(self, request: Request) -> None:
        """A request neither waits nor runs."""
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
        """Slots kept on an executor."""
        self._settle()
        for name in [name for name in self._away if self._clients[name].until <= now]:
            self._away.remove(name)
            del self._clients[name]
        return sum(client.executor == executor for client in self._awaited())

    def next_end(self, now: float) -> float | None:
        """When the next slot is given up; None for never."""
        return min((client.until for client in self._awaited() if client.until > now), default=None)

    def _awaited(self) -> Iterator[_Client]:
        return (client for name in self._away if (client := self._clients[name]).returns)

    def _settle(self) -> None:
        for request in [one for one in self._running if one.state.is_final]:
            self._running.remove(request)
            self.leave(request)
