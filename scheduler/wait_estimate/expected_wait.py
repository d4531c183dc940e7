"""How long the queue will take: places in the queue, expected waits, and when a refused client should come back.

It measures how fast rows make tokens, and looks at the requests that wait and that executors hold; time is passed in.
It decides nothing, and knows no strategy beyond the order in which its batcher ranks waiting requests.

The formula. Let v(R) be tokens that one row makes a second while R rows are held by executors, as measured of late
(speed.py); prefilling and waiting there for a slot are in it. Let R be the rows held now, r the mean of the tokens that
they are still expected to make, and g_j those of each request j ahead in the queue. A request that has the requests
1..k ahead of it is expected to start after

    (g_1 + ... + g_k + r) / (R·v(R))   seconds:

R·v(R) tokens a second are made in all, by the time it starts those ahead have had theirs, and r / (R·v(R)) is when the
next of R rows ends, on the average. It then takes g / v(R) to answer. While nothing had to wait at the latest dispatch,
those whose place is below the number of free slots start at once, and share the executors with so many rows as there
will be then.

Tokens still to come are predicted where the request carries a prediction (remaining_length.py), else the running mean
of generated lengths; while that is unknown, so is the wait. The estimate is as good as that; it knows no prompt lengths
but those of the recent past, which are in v, and none of the requests that will come and overtake.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from scheduler.batching.batcher import Batcher
from scheduler.request import Request, State
from scheduler.wait_estimate.speed import DecodeSpeed
from scheduler.waiting.ranked import RankedQueue
from scheduler.waiting.sorted_requests import Ahead
from scheduler.worker import Worker

FRESH = 0.25
"""Seconds for which places are used that had to be counted, since thousands of requests may ask."""


class ExpectedWait:
    """Reads a batcher's queue and what executors hold; changes neither. Event loop only."""

    def __init__(self, batcher: Batcher, workers: Collection[Worker]) -> None:
        self._batcher = batcher
        self._workers = workers
        self._speed = DecodeSpeed()
        self._stuck = False  # whether anything had to wait at the latest dispatch
        self._places: dict[Request, Ahead] = {}  # of a batcher that arranges batches
        self._total = Ahead()  # all requests that are in them
        self._counted: float | None = None  # when they were

    def dispatched(self, now: float) -> None:
        """Note that all requests which could go to an executor have gone."""
        self._stuck = bool(self._batcher.waiting)
        self._speed.observe(self._rows(), 0, now)

    def made(self, tokens: int, now: float) -> None:
        """Note that executors have made tokens."""
        self._speed.observe(self._rows(), tokens, now)

    def ended(self, request: Request) -> None:
        """Note that a request has all its tokens."""
        self._speed.ended(request.generated)

    @property
    def free_slots(self) -> int:
        """Slots that the first in the queue can have at once; none while any had to wait at the latest dispatch."""
        return 0 if self._stuck else max(0, _slots(self._live()) - self._rows())

    def place(self, request: Request, now: float) -> int | None:
        """How many requests are ahead in the queue, by the batcher's order; None when this one does not wait."""
        ahead = self._ahead(request, now)
        return None if ahead is None else ahead.place

    def wait(self, request: Request, now: float) -> float | None:
        """Seconds until it starts; None when it does not wait, or when nothing has been measured yet."""
        ahead = self._ahead(request, now)
        return None if ahead is None else self._seconds(ahead)

    def latency(self, request: Request, now: float) -> float | None:
        """Seconds until its answer is ready; None when it does not wait, or when there is no estimate.

        There is none while executors have nothing to do: what was measured under load tells little of that.
        """
        ahead, held = self._ahead(request, now), self._rows()
        if ahead is None or not (held or ahead.place):
            return None
        wait = self._seconds(ahead)
        rows = held + ahead.place + 1 if ahead.place < self.free_slots else self._usual_rows()
        seconds = self._speed.seconds_per_token(rows)
        return None if wait is None or seconds is None else wait + self._speed.remaining(request) * seconds

    def newcomer_wait(self, now: float) -> float | None:
        """Seconds until a request that came now, last in the queue, would start; None when nothing has been measured
        yet."""
        if isinstance(self._batcher.waiting, RankedQueue):
            return self._seconds(self._batcher.waiting.total())
        self._count(now)
        return self._seconds(self._total)

    def _seconds(self, ahead: Ahead) -> float | None:
        """Seconds until what is ahead has left and a row has ended."""
        if ahead.place < self.free_slots:
            return 0.0
        rows, typical = self._usual_rows(), self._speed.mean_length
        seconds = self._speed.seconds_per_token(rows)
        if seconds is None or not rows or (typical is None and ahead.unpredicted):
            return None
        tokens = ahead.tokens + ahead.unpredicted * (typical or 0.0)
        return (tokens + self._rest()) * seconds / rows

    def _ahead(self, request: Request, now: float) -> Ahead | None:
        """The requests that are ahead of one; None when it does not wait."""
        if request.state is not State.WAITING:
            return None
        if isinstance(self._batcher.waiting, RankedQueue):
            return self._batcher.waiting.ahead(request, now)
        if request not in self._places:  # it has come since
            self._counted = None
        self._count(now)
        return self._places.get(request)

    def _count(self, now: float) -> None:
        """Count what is ahead of each request, where the queue does not know."""
        if self._counted is not None and 0 <= now - self._counted < FRESH:
            return
        self._counted, self._places, self._total = now, {}, Ahead()
        for request in self._batcher.ranked(now):
            self._places[request] = self._total
            self._total = self._total.and_one(request)

    def _rest(self) -> float:
        """r: mean of the tokens that held rows are still expected to make."""
        held = [request for worker in self._live() for request in worker.requests.values()]
        return sum(self._speed.remaining(request) for request in held) / len(held) if held else 0.0

    def _live(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.serves]

    def _usual_rows(self) -> int:
        """R: the rows held, or all slots while some are free."""
        return sum(worker.rows for worker in self._live()) if self._stuck else _slots(self._live())

    def _rows(self) -> int:
        return sum(worker.rows for worker in self._workers)


def _slots(workers: Iterable[Worker]) -> int:
    return sum(worker.info.max_rows for worker in workers)
