"""First come, first served; shortest job first, by predicted lengths; and the latter with aging (SSJF, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from math import ceil

from scheduler.options import Scheduling
from scheduler.remaining_length import remaining_length
from scheduler.request import Request
from scheduler.waiting.queue import Order
from scheduler.waiting.sorted_requests import Ahead, Key


@dataclass(frozen=True)
class Fcfs(Order):
    """First come, first served, of one `priority`."""

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, request.times.arrival, request.row_id)

    def passed_by(self, before: Ahead) -> float:
        return 0.0


def remaining_tokens(request: Request) -> int:
    """Predicted tokens still to come, in whole ones, so that nearly equal requests keep their order of arrival."""
    return ceil(remaining_length(request))


@dataclass(frozen=True)
class Sjf(Order):
    """The request with the fewest predicted tokens still to come first.

    Without a prediction, an answer counts as long as it may become. While short requests keep coming, a long one may
    wait for ever.
    """

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, remaining_tokens(request), request.times.arrival, request.row_id)


MOST_SECONDS = 100.0  # that the oldest request waits for before all go by arrival, whatever is predicted of it


@dataclass(frozen=True, slots=True)
class Aging:
    """When requests have waited for too long, by their predicted times."""

    factor: float = Scheduling.aging_factor
    """Times its own predicted time that the oldest request waits for, until all go by arrival; 0: whatever it waits."""
    seconds_per_token: float = 0.02
    """K of SSJF's linear model of a request's time, T = C + K·tokens (section 2): the seconds of one decode iteration.
    Both defaults are those of the authors' simulator."""

    def __post_init__(self) -> None:
        if self.factor < 0 or self.seconds_per_token < 0:
            raise ValueError(f"the aging factor and the seconds of a token must not be negative: {self}")

    def seconds(self, request: Request) -> float:
        """The predicted seconds of what a request has still to generate."""
        return remaining_tokens(request) * self.seconds_per_token


@dataclass(frozen=True)
class AgedSjf(Order):
    """Shortest predicted job first, as SSJF's authors have it in their simulator.

    Only the request that has waited longest is looked at. Once it has waited for more than `factor` times its own
    predicted time, or for more than MOST_SECONDS, all go by arrival, until the one that has then waited longest has
    not. A factor of 0 turns this off. Classes of `priority` come before all this.

    The bound. Let a request with predicted time P arrive at time t on an executor that serves one request at a time,
    and let V be the seconds of the requests that wait at t. Those that came before it leave first, or are the oldest
    that starve; from min(factor·P, MOST_SECONDS) after t on, it is the oldest as soon as these have gone, and goes
    next. A short one passes it only while none that is older starves.
    """

    by_key = False
    aging: Aging

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, remaining_tokens(request), request.times.arrival, request.row_id)

    def rank(self, in_turn: Iterable[Request], keys: Mapping[Request, Key], now: float) -> Iterator[Request]:
        for (_, ranked), group in groupby(in_turn, key=lambda one: keys[one][:2]):
            requests = list(group)
            if ranked and self._starves(min(requests, key=_arrival), now):
                requests.sort(key=_arrival)
            yield from requests

    def _starves(self, oldest: Request, now: float) -> bool:
        factor, waited = self.aging.factor, now - oldest.times.arrival
        return factor > 0 and (waited > factor * self.aging.seconds(oldest) or waited > MOST_SECONDS)


def _arrival(request: Request) -> Key:
    return (request.times.arrival, request.row_id)
