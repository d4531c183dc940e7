"""Who comes first: pure functions from a request and the time to a key; the least key is served first.

Every key begins with the client's `priority` (lower is earlier) and ends with the row's number, so that no two
requests tie and equal requests keep their order of arrival. Only predicted lengths are known here, never true ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from scheduler.expected import expected_lengths
from scheduler.request import Request

Key: TypeAlias = tuple[float, ...]
Order: TypeAlias = Callable[[Request, float], Key]
"""(request, now in seconds) -> key."""


@dataclass(frozen=True, slots=True)
class Aging:
    """When a request that waits is promoted, so that shorter ones cannot pass it for ever."""

    factor: float = 10.0
    """A request is promoted when it has waited this many times its own predicted time."""
    seconds_per_token: float = 0.02
    """K of SSJF's linear model of a request's time, T = C + K·tokens (section 2): the seconds of one decode iteration.
    Both defaults are those of the authors' simulator."""


OrderFactory: TypeAlias = Callable[[Aging], Order]


def fcfs(request: Request, now: float) -> Key:
    """First come, first served."""
    return (request.priority, request.times.arrival, request.row_id)


def sjf(request: Request, now: float) -> Key:
    """Shortest job first, by the predicted tokens that are still to come (SSJF, section 3.2).

    These are the prediction less what has been generated, at least 1. Where nobody predicts, an answer counts as long
    as it may become. While short requests keep coming, a long one may wait for ever.
    """
    return (request.priority, remaining_tokens(request), request.times.arrival, request.row_id)


@dataclass(frozen=True, slots=True)
class AgedSjf:
    """Shortest predicted job first, but promoted requests before all others, by arrival among themselves.

    A request is promoted from the moment at which it has waited for `factor` times its predicted time, or would, by its
    predicted time, just meet its deadline if it were served at once. The predicted time is the predicted tokens still
    to come x `seconds_per_token`. Classes of `priority` come before all this, so aging protects a request from those of
    its own class only. Where all that waits has waited that long, this is FCFS.

    The bound. Let a request with predicted time P arrive at time t on an executor that serves one request at a time,
    let V be the seconds that those take which wait at t, R the rest of the one under way at t + factor·P, and s the
    request's own time. From t + factor·P on it is promoted, and before it come only promoted ones that arrived earlier:
    they waited at t. So whatever comes after t, unless of a better class, it ends by

        t + factor·P + R + V + s

    V, R and s are true times; the decision knows none of them.
    """

    aging: Aging

    def __call__(self, request: Request, now: float) -> Key:
        arrival, remaining = request.times.arrival, remaining_tokens(request)
        if now < self._promoted_at(request, remaining):
            return (request.priority, 1, remaining, arrival, request.row_id)
        return (request.priority, 0, arrival, request.row_id)

    def turns_at(self, request: Request) -> float:
        """When a waiting request is promoted; before and after that its key stays the same."""
        return self._promoted_at(request, remaining_tokens(request))

    def _promoted_at(self, request: Request, remaining: int) -> float:
        seconds = remaining * self.aging.seconds_per_token
        aged = request.times.arrival + self.aging.factor * seconds
        return aged if request.deadline is None else min(aged, request.deadline - seconds)


def remaining_tokens(request: Request) -> int:
    """The predicted tokens that a request has still to generate, at least 1."""
    return expected_lengths(request, None).generation


def _whatever_waits(order: Order) -> OrderFactory:
    return lambda aging: order


ORDERS: Mapping[str, OrderFactory] = MappingProxyType(
    {"fcfs": _whatever_waits(fcfs), "sjf": _whatever_waits(sjf), "sjf-aged": AgedSjf}
)

STEADY: frozenset[Order] = frozenset({fcfs, sjf})
"""Orders in which time plays no part, so that a request's key stays the same while it waits."""
