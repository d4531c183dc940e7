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
from math import log

from scheduler.batching.batcher import Batcher
from scheduler.request import Request, State
from scheduler.wait_estimate.completion import COVERAGE, LEAST_SECONDS, Calibration, Expected
from scheduler.wait_estimate.speed import DecodeSpeed
from scheduler.waiting.prices import Prices
from scheduler.waiting.ranked import CountingQueue
from scheduler.waiting.sorted_requests import Ahead
from scheduler.worker import Worker

FRESH = 0.25
"""Seconds for which places are used that had to be counted, since thousands of requests may ask."""

SHARES = ((1 - COVERAGE) / 2, 0.5, (1 + COVERAGE) / 2)
"""Quantiles of a length that an estimate goes by."""

UNKNOWN_FACTOR = 3.0
"""How many times shorter or longer an answer may be of whose length nothing but a number is known."""

LEAST_SPREAD = 0.25
"""Spread of an estimate at least: the wait is uncertain too."""


class ExpectedWait:
    """Reads a batcher's queue and what executors hold; changes neither. Event loop only."""

    def __init__(self, batcher: Batcher, workers: Collection[Worker]) -> None:
        self._batcher = batcher
        self._workers = workers
        self._speed = DecodeSpeed()
        self._calibration = Calibration()
        self._stuck = False  # whether anything had to wait at the latest dispatch
        self._places: dict[Request, Ahead] = {}  # of a batcher that arranges batches
        self._total = Ahead()  # all requests that are in them
        self._counted: float | None = None  # when they were
        self._mean_rest: float | None = None  # r, until anything changes for the rows that are held

    def dispatched(self, now: float) -> None:
        """Note that all requests which could go to an executor have gone."""
        self._stuck, self._mean_rest = bool(self._batcher.waiting), None
        self._speed.observe(self._rows(), 0, now)

    def made(self, tokens: int, now: float) -> None:
        """Note that executors have made tokens."""
        self._mean_rest = None
        self._speed.observe(self._rows(), tokens, now)

    def ended(self, request: Request) -> None:
        """Note that a request has all its tokens, at `request.times.end`."""
        self._speed.ended(request.generated)
        expected, end = request.expected, request.times.end
        if expected is not None and expected.known and end is not None:
            self._calibration.add(expected, end - expected.at)

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
        ahead = self._ahead(request, now)
        if ahead is None or not (self._rows() or ahead.place):
            return None
        wait, seconds = self._seconds(ahead), self._token_seconds(ahead)
        return None if wait is None or seconds is None else wait + self._speed.remaining(request) * seconds

    def seconds_per_token(self, request: Request, now: float) -> float | None:
        """Seconds between two tokens of its answer; None when it does not wait, or when nothing has been measured."""
        ahead = self._ahead(request, now)
        return None if ahead is None else self._token_seconds(ahead)

    def expect(self, request: Request, now: float) -> Expected:
        """What is expected of a request that comes now and is not in the queue yet."""
        ahead = self._before_newcomer(request, now)
        wait, seconds = self._seconds(ahead), self._token_seconds(ahead)
        if wait is None or seconds is None:
            return Expected(now, ahead.place, wait)
        low, middle, high = (wait + length * seconds for length in self._lengths(request))
        point = max(middle, LEAST_SECONDS)
        spread = max(log(max(high, point) / max(min(low, point), LEAST_SECONDS)), LEAST_SPREAD)
        return Expected(now, ahead.place, wait, point, spread, *self._calibration.interval(point, spread))

    def newcomer_wait(self, now: float) -> float | None:
        """Seconds until a request that came now, last in the queue, would start; None when nothing has been measured
        yet."""
        return self._seconds(self._all(now))

    def work(self, requests: Iterable[Request], prices: Prices) -> float:
        """Price of all that requests have still to do."""
        return sum(prices.work_left(request, self._speed.remaining(request)) for request in requests)

    @property
    def mean_length(self) -> float | None:
        """Tokens of the recent answers, on the average; None before the first."""
        return self._speed.mean_length

    def _all(self, now: float) -> Ahead:
        if isinstance(self._batcher.waiting, CountingQueue):
            return self._batcher.waiting.total()
        self._count(now)
        return self._total

    def _before_newcomer(self, request: Request, now: float) -> Ahead:
        """The requests that would be ahead of one that came now; all where the queue does not know."""
        ahead = self._batcher.waiting.ahead(request, now) if isinstance(self._batcher.waiting, CountingQueue) else None
        return self._all(now) if ahead is None else ahead

    def _lengths(self, request: Request) -> tuple[float, float, float]:
        """Tokens that an answer is expected to have: the low end, the median and the high end of an interval."""
        middle = self._speed.remaining(request)
        unknown = middle / UNKNOWN_FACTOR, middle, min(request.sampling.max_tokens, middle * UNKNOWN_FACTOR)
        return length_interval(request) or unknown

    def _token_seconds(self, ahead: Ahead) -> float | None:
        """Seconds that a request needs for a token once it has started; None when nothing has been measured yet."""
        begins_now = ahead.place < self.free_slots
        return self._speed.seconds_per_token(self._rows() + ahead.place + 1 if begins_now else self._usual_rows())

    def _seconds(self, ahead: Ahead) -> float | None:
        """Seconds until what is ahead has left and a row has ended."""
        if ahead.place < self.free_slots:
            return 0.0
        rows, tokens = self._usual_rows(), self._tokens(ahead)
        seconds = self._speed.seconds_per_token(rows)
        return None if seconds is None or not rows or tokens is None else (tokens + self._rest()) * seconds / rows

    def _tokens(self, ahead: Ahead) -> float | None:
        """Tokens that requests are expected to make; None where some have no prediction, and no answer has ended."""
        typical = self._speed.mean_length
        return None if typical is None and ahead.unpredicted else ahead.tokens + ahead.unpredicted * (typical or 0.0)

    def _ahead(self, request: Request, now: float) -> Ahead | None:
        """The requests that are ahead of one; None when it does not wait."""
        if request.state is not State.WAITING:
            return None
        if isinstance(self._batcher.waiting, CountingQueue):
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
        """r: mean of the tokens that held rows are still expected to make; of a thousand it takes a millisecond."""
        if self._mean_rest is None:
            held = self._held()
            self._mean_rest = sum(map(self._speed.remaining, held)) / len(held) if held else 0.0
        return self._mean_rest

    def _held(self) -> list[Request]:
        return [request for worker in self._live() for request in worker.requests.values()]

    def _live(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.serves]

    def _usual_rows(self) -> int:
        """R: the rows held, or all slots while some are free."""
        return sum(worker.rows for worker in self._live()) if self._stuck else _slots(self._live())

    def _rows(self) -> int:
        return sum(worker.rows for worker in self._workers)


def length_interval(request: Request) -> tuple[float, float, float] | None:
    """Tokens of an answer: the low end, the median and the high end of the interval; None without a distribution."""
    known, most = request.distribution, request.sampling.max_tokens
    if known is None:
        return None
    low, middle, high = (min(most, known.quantile(share)) for share in SHARES)
    return low, middle, high


def _slots(workers: Iterable[Worker]) -> int:
    return sum(worker.info.max_rows for worker in workers)
