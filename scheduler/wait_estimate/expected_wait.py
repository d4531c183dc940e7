"""How long the queue will take: places in line, expected waits, and when one who is turned away shall come again.

It measures how fast rows make tokens, and looks at what waits and at what executors hold; time is passed in. It
decides nothing, and knows no strategy beyond the order in which its batcher tells what waits.

The formula. Let v(R) be tokens that one row makes a second while R rows are held by executors, as measured of late
(wait_estimate.speed); reading prompts and waiting there for a slot are in it. Let R be the rows held now, r the mean of the
tokens that they are still expected to make, and g_j what each request j ahead in line is. One that has the requests
1..k ahead of it is expected to start after

    (g_1 + ... + g_k + r) / (R·v(R))   seconds:

R·v(R) tokens a second are made in all, by the time it starts those ahead have had theirs, and r / (R·v(R)) is when the
next of R rows ends, on the average. It then takes g / v(R) to answer. While nothing had to wait at the latest dispatch,
those whose place is below the number of free slots start at once, and share the executors with so many rows as there
will be then.

Tokens still to come are predicted where the request carries a prediction (remaining_length), else the running mean
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
"""Seconds for which one look at the queue serves all who ask, since thousands may."""


@dataclass(frozen=True, slots=True)
class _Look:
    """The queue and the executors at one moment."""

    at: float
    line: dict[Request, tuple[int, float]]
    """What waits, best first: its place, and the tokens of those ahead of it."""
    tokens: float
    """Of all that waits."""
    held: int
    """Rows that executors hold."""
    rows: int
    """R: those, or all slots while some are free."""
    rest: float
    """r."""
    free: int
    """Slots that the first in line can have at once."""


class ExpectedWait:
    """Reads a batcher's queue and the books on executors; changes neither. Event loop only."""

    def __init__(self, batcher: Batcher, workers: Collection[Worker]) -> None:
        self._batcher = batcher
        self._workers = workers
        self._pace = DecodeSpeed()
        self._stuck = False  # whether anything had to wait at the latest dispatch
        self._look: _Look | None = None

    def dispatched(self, now: float) -> None:
        """Whatever could go to an executor has gone."""
        self._stuck = bool(self._batcher.waiting)
        self._pace.observe(self._rows(), 0, now)

    def made(self, tokens: int, now: float) -> None:
        """Executors have made tokens."""
        self._pace.observe(self._rows(), tokens, now)

    def ended(self, request: Request) -> None:
        """A request has all its tokens."""
        self._pace.ended(request.generated)

    @property
    def free_slots(self) -> int:
        """Slots that the first in line can have at once; none while anything had to wait at the latest dispatch."""
        return 0 if self._stuck else max(0, _slots(self._live()) - self._rows())

    def place(self, request: Request, now: float) -> int | None:
        """How many requests are ahead in line, as far as the batcher's order tells; None when it does not wait."""
        found = self._found(request, now)
        return None if found is None else found[0]

    def wait(self, request: Request, now: float) -> float | None:
        """Seconds until it starts; None when it does not wait, or when nothing has been measured yet."""
        found = self._found(request, now)
        return None if found is None else self._seconds(*found, self._current(now))

    def latency(self, request: Request, now: float) -> float | None:
        """Seconds until its answer is ready; None when it does not wait, or when nobody can say.

        Nobody can where executors have nothing to do: what was measured under load tells little of that.
        """
        found, look = self._found(request, now), self._current(now)
        if found is None or not (look.held or found[0]):
            return None
        wait = self._seconds(*found, look)
        pace = self._pace.seconds_per_token(look.held + found[0] + 1 if found[0] < look.free else look.rows)
        return None if wait is None or pace is None else wait + self._pace.remaining(request) * pace

    def newcomer_wait(self, now: float) -> float | None:
        """Seconds until one starts who comes now, last in line; None when nothing has been measured yet."""
        look = self._current(now)
        return self._seconds(len(look.line), look.tokens, look)

    def _seconds(self, place: int, tokens_ahead: float, look: _Look) -> float | None:
        if place < look.free:
            return 0.0
        pace = self._pace.seconds_per_token(look.rows)
        return None if pace is None or not look.rows else (tokens_ahead + look.rest) * pace / look.rows

    def _found(self, request: Request, now: float) -> tuple[int, float] | None:
        """Its place and the tokens ahead of it; None when it does not wait."""
        if request.state is not State.WAITING:
            return None
        found = self._current(now).line.get(request)
        if found is None:  # it has come since
            self._look = None
            found = self._current(now).line.get(request)
        return found

    def _current(self, now: float) -> _Look:
        if self._look is None or not 0 <= now - self._look.at < FRESH:
            self._look = self._new_look(now)
        return self._look

    def _new_look(self, now: float) -> _Look:
        live = self._live()
        held = [request for worker in live for request in worker.requests.values()]
        line: dict[Request, tuple[int, float]] = {}
        tokens = 0.0
        for place, request in enumerate(self._batcher.waiting):
            line[request] = (place, tokens)
            tokens += self._pace.remaining(request)
        rest = _mean(self._pace.remaining(request) for request in held)
        rows = len(held) if self._stuck else _slots(live)
        return _Look(now, line, tokens, len(held), rows, rest, self.free_slots)

    def _live(self) -> list[Worker]:
        return [worker for worker in self._workers if not worker.lost]

    def _rows(self) -> int:
        return sum(worker.rows for worker in self._workers)


def _slots(workers: Iterable[Worker]) -> int:
    return sum(worker.info.max_rows for worker in workers)


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0
