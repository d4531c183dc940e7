"""The waiting queue: requests that no executor holds, ranked by an order. Knows no executor and no batch."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.order import Order
from scheduler.request import Request


class WaitingQueue:
    """Requests that wait. Iterating gives them best first, as ranked by the latest `rank`."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        """Put a request at the end; the next `rank` finds its place."""
        self._requests.append(request)

    def discard(self, request: Request) -> bool:
        """Take a request out; False when it was not here."""
        if request not in self._requests:
            return False
        self._requests.remove(request)
        return True

    def rank(self, now: float) -> None:
        """Sort by the order's keys at time `now`. Cheap when little changed, since the sort is adaptive."""
        self._requests.sort(key=lambda request: self._order(request, now))

    def position(self, request: Request) -> int | None:
        """How many requests are ahead; None when it is not waiting."""
        return self._requests.index(request) if request in self._requests else None
