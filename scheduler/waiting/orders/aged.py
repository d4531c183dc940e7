"""Shortest job first with aging, so that no request starves (SSJF, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.options import Scheduling
from scheduler.request import Request
from scheduler.waiting.orders.sjf import remaining_tokens
from scheduler.waiting.queue import Key


@dataclass(frozen=True, slots=True)
class Aging:
    """When a request that waits is promoted, so that shorter ones cannot pass it for ever."""

    factor: float = Scheduling.aging_factor
    """A request is promoted when it has waited this many times its own predicted time."""
    seconds_per_token: float = 0.02
    """K of SSJF's linear model of a request's time, T = C + K·tokens (section 2): the seconds of one decode iteration.
    Both defaults are those of the authors' simulator."""

    def __post_init__(self) -> None:
        if self.factor < 0 or self.seconds_per_token < 0:
            raise ValueError(f"the aging factor and the seconds of a token must not be negative: {self}")

    def seconds(self, request: Request) -> float:
        """The predicted seconds of what a request has still to generate."""
        return remaining_tokens(request) * self.seconds_per_token


@dataclass(frozen=True, slots=True)
class AgedSjf:
    """Shortest predicted job first, but promoted requests before all others, by arrival among themselves.

    A request is promoted from the moment at which it has waited for `factor` times its predicted time, which is the
    predicted tokens still to come x `seconds_per_token`. Classes of `priority` come before all this, so aging protects
    a request from those of its own class only. Where all requests have waited that long, this is FCFS.

    The bound. Let a request with predicted time P arrive at time t on an executor that serves one request at a time,
    let V be the seconds of the requests that wait at t, R the rest of the one under way at t + factor·P, and s the
    request's own time. From t + factor·P on it is promoted, and before it come only promoted ones that arrived earlier:
    they waited at t. So whatever comes after t, unless of a better class, it ends by

        t + factor·P + R + V + s

    V, R and s are true times; the decision knows none of them.
    """

    aging: Aging

    def key(self, request: Request, now: float) -> Key:
        arrival = request.times.arrival
        if now < self._promoted_at(request):
            return (request.priority, 1, remaining_tokens(request), arrival, request.row_id)
        return (request.priority, 0, arrival, request.row_id)

    def changes_at(self, request: Request) -> tuple[float, ...]:
        return (self._promoted_at(request),)

    def _promoted_at(self, request: Request) -> float:
        return request.times.arrival + self.aging.factor * self.aging.seconds(request)
