"""Who comes first: pure functions from a request and the time to a key; the least key is served first.

How the rules compose. The client's `priority` comes before all else: lower is earlier. Within a class come first the
requests that are due, the earliest deadline first (`DueFirst`); after them all others as the strategy's own order has
it, and where that ages, those that it promotes before the rest. Every key ends with the row's number, so that no two
requests tie and equal requests keep their order of arrival. Only predicted lengths are known here, never true ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Protocol, TypeAlias, runtime_checkable

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

    def __post_init__(self) -> None:
        if self.factor < 0 or self.seconds_per_token < 0:
            raise ValueError(f"nobody ages faster than time passes: {self} has a negative number")

    def seconds(self, request: Request) -> float:
        """The predicted time of what a request has still to generate."""
        return remaining_tokens(request) * self.seconds_per_token


@runtime_checkable
class Turning(Protocol):
    """An order that tells when a waiting request's key changes; before, between and after those moments it stays."""

    def __call__(self, request: Request, now: float, /) -> Key: ...

    def turns(self, request: Request, /) -> tuple[float, ...]: ...


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

    A request is promoted from the moment at which it has waited for `factor` times its predicted time, which is the
    predicted tokens still to come x `seconds_per_token`. Classes of `priority` come before all this, so aging protects
    a request from those of its own class only. Where all that waits has waited that long, this is FCFS.

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

    def turns(self, request: Request) -> tuple[float, ...]:
        return (self._promoted_at(request, remaining_tokens(request)),)

    def _promoted_at(self, request: Request, remaining: int) -> float:
        return request.times.arrival + self.aging.factor * remaining * self.aging.seconds_per_token


SLACK = 2.0
"""A request is due when this many times its predicted time is left until its deadline: once for the answer, and as long
again to wait for a slot."""


@dataclass(frozen=True, slots=True)
class DueFirst:
    """Another order, but requests that would miss their deadline by their turn are moved forward: those that are due
    come before all others of their class, the earliest deadline first.

    A request with a deadline is due from the moment at which no more than SLACK times its predicted time is left. Until
    then it has no advantage, so that a far deadline costs the others nothing. One without a deadline is never due.
    """

    order: Order
    aging: Aging

    def __call__(self, request: Request, now: float) -> Key:
        if request.deadline is not None and now >= due_at(request, self.aging):
            return (request.priority, 0, request.deadline, request.times.arrival, request.row_id)
        return (request.priority, 1, *self.order(request, now)[1:])

    def turns(self, request: Request) -> tuple[float, ...]:
        others = turns_of(self.order, request) or ()
        return others if request.deadline is None else (due_at(request, self.aging), *others)


def due_at(request: Request, aging: Aging) -> float:
    """When a waiting request becomes due, in seconds of the clock; infinity where it has no deadline."""
    return inf if request.deadline is None else request.deadline - SLACK * aging.seconds(request)


def remaining_tokens(request: Request) -> int:
    """The predicted tokens that a request has still to generate, at least 1."""
    return expected_lengths(request, None).generation


def turns_of(order: Order, request: Request) -> tuple[float, ...] | None:
    """The moments at which a waiting request's key changes, in no order; None where the order does not tell."""
    if order in STEADY:
        return ()
    return order.turns(request) if isinstance(order, Turning) else None


def _first_come(aging: Aging) -> Order:
    return DueFirst(fcfs, aging)


def _shortest(aging: Aging) -> Order:
    return DueFirst(sjf, aging)


def _shortest_aged(aging: Aging) -> Order:
    return DueFirst(AgedSjf(aging), aging)


ORDERS: Mapping[str, OrderFactory] = MappingProxyType(
    {"fcfs": _first_come, "sjf": _shortest, "sjf-aged": _shortest_aged}
)

STEADY: frozenset[Order] = frozenset({fcfs, sjf})
"""Orders in which time plays no part, so that a request's key stays the same while it waits."""
