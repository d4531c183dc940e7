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
of generated lengths, never more than a request may make. The estimate is as good as that; it knows no prompt lengths
but those of the recent past, which are in v, and none of the requests that will come and overtake.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from scheduler.batching.batcher import Batcher
from scheduler.request import Request, State
from scheduler.wait_estimate.speed import DecodeSpeed
from scheduler.worker import Worker

FRESH = 0.25
"""Seconds for which one snapshot of the queue is used, since thousands of requests may ask."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The queue and the executors at one moment."""

    at: float
    places: dict[Request, tuple[int, float]]
    """Place in the queue of each waiting request, and the tokens of those ahead of it."""
    tokens: float
    """Tokens that all waiting requests are expected to make."""
    held: int
    """Rows that executors hold."""
    rows: int
    """R: the rows held, or all slots while some are free."""
    rest: float
    """r: mean of the tokens that held rows are still expected to make."""
    free: int
    """Slots that the first in the queue can have at once."""


class ExpectedWait:
    """Reads a batcher's queue and what executors hold; changes neither. Event loop only."""

    def __init__(self, batcher: Batcher, workers: Collection[Worker]) -> None:
        self._batcher = batcher
        self._workers = workers
        self._speed = DecodeSpeed()
        self._stuck = False  # whether anything had to wait at the latest dispatch
        self._snapshot: _Snapshot | None = None

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
        found = self._found(request, now)
        return None if found is None else found[0]

    def wait(self, request: Request, now: float) -> float | None:
        """Seconds until it starts; None when it does not wait, or when nothing has been measured yet."""
        found = self._found(request, now)
        return None if found is None else self._seconds(*found, self._current(now))

    def latency(self, request: Request, now: float) -> float | None:
        """Seconds until its answer is ready; None when it does not wait, or when there is no estimate.

        There is none while executors have nothing to do: what was measured under load tells little of that.
        """
        found, snapshot = self._found(request, now), self._current(now)
        if found is None or not (snapshot.held or found[0]):
            return None
        wait = self._seconds(*found, snapshot)
        rows = snapshot.held + found[0] + 1 if found[0] < snapshot.free else snapshot.rows
        seconds = self._speed.seconds_per_token(rows)
        return None if wait is None or seconds is None else wait + self._speed.remaining(request) * seconds

    def newcomer_wait(self, now: float) -> float | None:
        """Seconds until a request that came now, last in the queue, would start; None when nothing has been measured
        yet."""
        snapshot = self._current(now)
        return self._seconds(len(snapshot.places), snapshot.tokens, snapshot)

    def _seconds(self, place: int, tokens_ahead: float, snapshot: _Snapshot) -> float | None:
        if place < snapshot.free:
            return 0.0
        seconds = self._speed.seconds_per_token(snapshot.rows)
        return (
            None if seconds is None or not snapshot.rows else (tokens_ahead + snapshot.rest) * seconds / snapshot.rows
        )

    def _found(self, request: Request, now: float) -> tuple[int, float] | None:
        """Place of a request and the tokens ahead of it; None when it does not wait."""
        if request.state is not State.WAITING:
            return None
        found = self._current(now).places.get(request)
        if found is None:  # it has come since
            self._snapshot = None
            found = self._current(now).places.get(request)
        return found

    def _current(self, now: float) -> _Snapshot:
        if self._snapshot is None or not 0 <= now - self._snapshot.at < FRESH:
            self._snapshot = self._take_snapshot(now)
        return self._snapshot

    def _take_snapshot(self, now: float) -> _Snapshot:
        live = self._live()
        held = [request for worker in live for request in worker.requests.values()]
        places: dict[Request, tuple[int, float]] = {}
        tokens = 0.0
        for place, request in enumerate(self._batcher.ranked(now)):
            places[request] = (place, tokens)
            tokens += self._speed.remaining(request)
        rest = _mean(self._speed.remaining(request) for request in held)
        rows = len(held) if self._stuck else _slots(live)
        return _Snapshot(now, places, tokens, len(held), rows, rest, self.free_slots)

    def _live(self) -> list[Worker]:
        return [worker for worker in self._workers if not worker.lost]

    def _rows(self) -> int:
        return sum(worker.rows for worker in self._workers)


def _slots(workers: Iterable[Worker]) -> int:
    return sum(worker.info.max_rows for worker in workers)


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0
