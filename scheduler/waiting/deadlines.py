"""Deadlines of requests, and which requests have waited past theirs."""

from __future__ import annotations

import heapq

from engine.messages import RowId
from scheduler.request import Request, State


class Deadlines:
    """Watches deadlines. Only the wait for the first token counts: an answer that has begun goes on in any case."""

    def __init__(self) -> None:
        self._moments: list[tuple[float, RowId, Request]] = []  # a heap; those that no longer count are still there
        self._overdue: list[Request] = []  # past their deadline on an executor, which may hand them back untouched

    def add(self, request: Request) -> None:
        """Watch a request's deadline, if it has one."""
        if request.begin_by is not None:
            heapq.heappush(self._moments, (request.begin_by, request.row_id, request))

    def next(self) -> float | None:
        """When the next deadline passes, in seconds of the clock; None for never."""
        while self._moments and not _is_open(self._moments[0][2]):
            heapq.heappop(self._moments)
        return self._moments[0][0] if self._moments else None

    def passed(self, now: float) -> list[Request]:
        """Waiting requests whose deadline has passed, even if an executor had them then; each is returned once."""
        while (moment := self.next()) is not None and moment <= now:
            self._overdue.append(heapq.heappop(self._moments)[2])
        late = [request for request in self._overdue if request.state is State.WAITING and _is_open(request)]
        self._overdue = [one for one in self._overdue if one.state is not State.WAITING and _is_open(one)]
        return late


def _is_open(request: Request) -> bool:
    return not request.state.is_final and not request.generated
