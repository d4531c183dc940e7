"""The waiting queue: requests that no executor holds, ranked by an order. Knows no executor and no batch."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator

from scheduler.order import STEADY, Order
from scheduler.request import Request


class WaitingQueue(Collection[Request]):
    """Requests that wait. Iterating gives them best first, as ranked by the latest `rank`."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._steady = order in STEADY
        self._requests: list[Request] = []
        self._ranked: float | None = None  # the time of the latest rank; None: requests have come since

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __contains__(self, request: object) -> bool:
        return request in self._requests

    def add(self, request: Request) -> None:
        """Put a request in; the next `rank` finds its place at the latest."""
        if self._steady:  # a queue of thousands is not sorted anew for each that comes
            bisect.insort(self._requests, request, key=lambda other: self._order(other, 0.0))
        else:
            self._requests.append(request)
            self._ranked = None

    def discard(self, request: Request) -> bool:
        """Take a request out; False when it was not here."""
        try:
            self._requests.remove(request)
        except ValueError:
            return False
        return True

    def rank(self, now: float) -> None:
        """Sort by the order's keys at time `now`. Cheap when little changed, since the sort is adaptive."""
        if not self._steady and self._ranked != now:
            self._requests.sort(key=lambda request: self._order(request, now))
            self._ranked = now

    def position(self, request: Request) -> int | None:
        """How many requests are ahead; None when it is not waiting."""
        return self._requests.index(request) if request in self._requests else None
