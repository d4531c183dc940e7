"""Highest response ratio next, of single requests: (waited + work) / work, the greatest first (Brinch Hansen 1971).

The work is what is predicted, or only what is to be read of the prompt, which needs no prediction (SGLang's `hrrn`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from scheduler.request import Request
from scheduler.waiting.aged import Aging
from scheduler.waiting.due import due_at, due_key
from scheduler.waiting.queue import Key

LEAST_WORK = 1e-9
"""Work that a request counts for at least, so that none divides by zero."""


class ResponseRatioQueue(Collection[Request]):
    """A Queue whose order changes all the time, so that it looks at all requests whenever it is asked.

    Requests that are due by their deadline go first. No request starves: its ratio grows without end.
    """

    def __init__(self, work: Callable[[Request], float], aging: Aging) -> None:
        """`work` of a request may be in any unit."""
        self._work_of = work
        self._aging = aging
        self._work: dict[Request, float] = {}

    def __len__(self) -> int:
        return len(self._work)

    def __contains__(self, request: object) -> bool:
        return request in self._work

    def __iter__(self) -> Iterator[Request]:
        return iter(self._work)

    @property
    def best_priority(self) -> int:
        return min(request.priority for request in self._work)

    def ranked(self, now: float) -> Sequence[Request]:
        return sorted(self._work, key=self._key(now))

    def add(self, request: Request) -> None:
        self._work[request] = max(LEAST_WORK, self._work_of(request))

    def discard(self, request: Request) -> bool:
        return self._work.pop(request, None) is not None

    def revise(self, request: Request) -> None:
        if request in self._work:
            self.add(request)

    def serve(self, request: Request) -> None:
        self.discard(request)

    def _key(self, now: float) -> _KeyAt:
        return _KeyAt(self._work, self._aging, now)


class _KeyAt:
    """Sorting key at a moment."""

    def __init__(self, work: dict[Request, float], aging: Aging, now: float) -> None:
        self._work = work
        self._aging = aging
        self._now = now

    def __call__(self, request: Request) -> Key:
        if request.begin_by is not None and due_at(request, self._aging) <= self._now:
            return due_key(request)
        arrival, row_id = request.times.arrival, request.row_id
        return (request.priority, 1, (arrival - self._now) / self._work[request], arrival, row_id)
