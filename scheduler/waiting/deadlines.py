import heapq
from math import inf

from engine.messages import RowId
from scheduler.request import Request, State
from scheduler.waiting.by_length import Aging

SLACK = 2.0  # due at twice its predicted time left


def due_at(request: Request, aging: Aging) -> float:
    return inf if request.deadline is None else request.deadline - SLACK * aging.seconds(request)


class Deadlines:
    """An answer that has begun goes on past its own."""

    def __init__(self) -> None:
        self._moments: list[tuple[float, RowId, Request]] = []  # lazy heap
        self._overdue: list[Request] = []  # on an executor, may return

    def add(self, request: Request) -> None:
        if request.deadline is not None:
            heapq.heappush(self._moments, (request.deadline, request.row_id, request))

    def next(self) -> float | None:
        while self._moments and not _is_open(self._moments[0][2]):
            heapq.heappop(self._moments)
        return self._moments[0][0] if self._moments else None

    def passed(self, now: float) -> list[Request]:
        while (moment := self.next()) is not None and moment <= now:
            self._overdue.append(heapq.heappop(self._moments)[2])
        late = [request for request in self._overdue if request.state is State.WAITING and _is_open(request)]
        self._overdue = [one for one in self._overdue if one.state is not State.WAITING and _is_open(one)]
        return late


def _is_open(request: Request) -> bool:
    return not request.state.is_final and not request.generated
