"""Boost: requests are served by arrival, but cheap ones as if they had come earlier (UniBoost; Yu and Scully 2024).

    key = arrival - b(w),    b(w) = (1/γ)·ln(1 / (1 - e^(-γ·w)))

With γ to infinity this is first come, first served, with γ to 0 shortest job first; where γ is the rate at which the
tail of waiting times decays, no order has a lighter tail (for one server and known times). w is either the work that
is predicted, or the work attained so far, which needs no prediction; running rows then must make way by the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import expm1, frexp, ldexp, log

from scheduler.request import Request
from scheduler.waiting.prices import Prices, PricesNow
from scheduler.waiting.queue import Order
from scheduler.waiting.sorted_requests import Key

LEAST_WORK = 1e-9
"""Seconds that a request counts for at least, so that no boost is infinite."""


def boost(work: float, gamma: float) -> float:
    """b(w): seconds by which a request of so many seconds of work is put forward, by γ in 1/s."""
    return -log(-expm1(-gamma * max(work, LEAST_WORK))) / gamma


def predicted_work(request: Request, prices: Prices) -> float:
    """Work that a request has still to do, in units of the prices."""
    return prices.work(request)


def attained_work(request: Request, prices: Prices) -> float:
    """Work that a request has had, in units of the prices, rounded up to the next power of two, and its prompt at
    least: so its key changes at geometrically growing levels of service only."""
    fraction, exponent = frexp(prices.attained(request))
    return ldexp(1.0, exponent - (fraction == 0.5))


@dataclass(frozen=True)
class Boost(Order):
    """Arrival less the boost. A request's key stays the same while it waits."""

    prices: PricesNow
    gamma: float
    """γ, in 1/s of the device's time."""
    work: Callable[[Request, Prices], float] = predicted_work

    def __post_init__(self) -> None:
        if self.gamma <= 0:
            raise ValueError(f"gamma must be more than 0: {self.gamma}")

    def key(self, request: Request, now: float) -> Key:
        arrival, prices = request.times.arrival, self.prices()
        moved = arrival - boost(self.work(request, prices) * prices.unit, self.gamma)
        return (request.priority, moved, arrival, request.row_id)
