"""The state of a scheduler: how many requests are where, how long they will take, and how long a newcomer would.

It reads the request table and the strategy's parts, and changes neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import chain, islice, takewhile
from math import inf
from typing import TYPE_CHECKING, TypeAlias, TypedDict, Unpack

from engine.sampling.params import SamplingParams
from scheduler.assembly import Parts
from scheduler.clock import Clock
from scheduler.placement import NodeLoad
from scheduler.plan import Worker
from scheduler.remaining_length import Calibration
from scheduler.request import Request, Times
from scheduler.request_table import RequestTable
from scheduler.wait_estimate.completion import Comparison
from scheduler.wait_estimate.places import FRESH, FRONT, Explanation, find_reason

if TYPE_CHECKING:
    from scheduler.length.prediction import LengthDistribution

KeptPrefix: TypeAlias = Callable[[Sequence[int], str], int]
"""Tokens of a prompt, of a scope, whose K and V are kept from earlier ones."""

NO_ROW = 2**63 - 1
"""Number of a request that is not taken in: after all that came at the same moment."""


def keep_nothing(prompt: Sequence[int], scope: str) -> int:
    """No tokens of a prompt, whatever its scope: where nothing is kept."""
    return 0


class Known(TypedDict, total=False):
    """What may be known of a request that comes: fields of Request, with its defaults."""

    priority: int
    client: str
    predicted_length: float | None
    distribution: LengthDistribution | None
    cache_scope: str


class SchedulerStatus:
    """The requests of one scheduler, to be read only. All methods belong to the event loop's thread."""

    def __init__(self, parts: Parts, table: RequestTable, clock: Clock, kept_prefix: KeptPrefix) -> None:
        self._parts = parts
        self._table = table
        self._clock = clock
        self._kept_prefix = kept_prefix
        self._load = NodeLoad(-inf, 0.0, parts.prices())
        self.now = clock.now
        """Tells the seconds of the clock by which arrivals and deadlines are given."""
        self.waiting = table.waiting
        """Requests that no executor has, in no particular order. To be read only."""
        self.workers: Collection[Worker] = table.workers.values()
        """The executors and what each holds, lost ones too. To be read only."""
        self.by_arrival: Comparison = table.expected_wait.by_arrival
        """Latencies so far beside those by order of arrival. To be read only."""
        self.calibration: Calibration | None = table.calibration
        """What predictions turned out to be; None where the strategy takes them as they are. To be read only."""

    @property
    def requests_queued(self) -> int:
        """Requests that no executor has."""
        return len(self._table.waiting)

    @property
    def requests_in_line(self) -> int:
        """Requests that no executor has, but for those in the background."""
        return len(self._table.queued_tokens)

    @property
    def requests_waiting(self) -> int:
        """Requests that are queued, or that an executor has and has not begun."""
        return self.requests_queued + len(self.not_begun)

    @property
    def requests_running(self) -> int:
        """Requests that an executor has begun, in whatever stage."""
        return self._table.held - len(self.not_begun)

    @property
    def tokens_waiting(self) -> int:
        """Tokens of the requests that are in line: prompt, generated, and expected to come."""
        return sum(self._table.queued_tokens.values())

    @property
    def free_slots(self) -> int:
        """Requests that would not have to wait if they came now."""
        return self._table.expected_wait.free_slots

    def first_in_line(self, most: int) -> list[Request]:
        """Requests that no executor has, as many as are wanted, in the order in which they are served."""
        return list(islice(self.waiting.ranked(self._clock.now()), most))

    @property
    def not_begun(self) -> Collection[Request]:
        """Requests that executors have and have not begun."""
        return self._table.not_begun

    def place(self, request: Request) -> int | None:
        """How many requests are ahead in the queue, by the order; None when this one does not wait."""
        return self._table.expected_wait.place(request, self._clock.now())

    def expected_wait(self, request: Request) -> float | None:
        """Seconds until a request starts; None when it does not wait, or when nothing has been measured yet."""
        return self._table.expected_wait.wait(request, self._clock.now())

    def explain(self, request: Request) -> Explanation | None:
        """Why a request waits in the queue; None when it does not. Looks at the front of the queue at most."""
        place = self.place(request)
        if place is None:
            return None
        ahead = tuple(islice(takewhile(lambda one: one is not request, self.waiting.ranked(self._clock.now())), FRONT))
        count = len(ahead) if len(ahead) < FRONT else max(FRONT, place)
        reasons = Counter(find_reason(one, request) for one in ahead)
        before = self._table.expected_wait.places.ahead(request, self._clock.now())
        known = self.waiting.passed_by(before) if before else None
        passed_for = None if known is None else known * self._parts.prices().unit / max(1, len(self._table.serving()))
        return Explanation(self._parts.strategy, count, ahead, reasons, passed_for)

    def retry_after(self) -> float:
        """Seconds, 1 at least, until all waiting requests have started: when a refused client should come back."""
        return max(1.0, self.newcomer_wait() or 0.0)

    def newcomer_wait(self) -> float | None:
        """Seconds until a request that came now, last in the queue, would start; None when nothing has been measured
        yet."""
        return self._table.expected_wait.newcomer_wait(self._clock.now())

    def load(self) -> NodeLoad:
        """The load of this server for routers: as it is now, or was a moment ago, since many may ask."""
        now, expected, workers = self._clock.now(), self._table.expected_wait, self._table.live()
        if now - self._load.at >= FRESH:
            prices = self._parts.prices()
            prices = replace(prices, unit=prices.unit / max(1, len(workers)))
            held = (request for worker in workers for request in worker.requests.values())
            work = prices.unit * expected.work(chain(self.waiting, held), prices)
            requests, slots = self.requests_queued + self._table.held, sum(worker.info.max_rows for worker in workers)
            self._load = NodeLoad(now, work, prices, requests, max(1, slots), expected.mean_length)
        return self._load

    @property
    def kv_usage(self) -> float:
        """Part of the cells of K and V of all executors that their batches take."""
        capacity = sum(worker.capacity_tokens for worker in self._table.live())
        return sum(worker.used_tokens for worker in self._table.live()) / capacity if capacity else 0.0

    def held_by(self, executor: int) -> int:
        """Number of requests that an executor holds; 0 once it is lost."""
        return self._table.workers[executor].rows

    def estimate(self, prompt: Sequence[int], sampling: SamplingParams, **known: Unpack[Known]) -> Request:
        """The request as it would be, with what is expected of it, had it come now; it is not taken in."""
        now = self._clock.now()
        request = Request(NO_ROW, tuple(prompt), sampling, Times(arrival=now), **known)
        request.correction = self._table.correct(request)
        request.cached_prompt = self._kept_prefix(request.prompt, request.cache_scope)
        request.expected = self._table.expected_wait.expect(request, now)
        return request
