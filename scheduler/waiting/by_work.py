"""Published orders by work: boost, multi-level feedback, fair sojourn, highest response ratio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, expm1, floor, frexp, ldexp, log, log2

from scheduler.remaining_length import work_left
from scheduler.request import Request
from scheduler.waiting.prices import Prices, PricesNow
from scheduler.waiting.queue import Key, Order

LEAST_WORK = 1e-9  # that a request counts for at least, so that no boost is infinite and no ratio divides by zero


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
    """Boost: requests are served by arrival, but cheap ones as if they had come earlier (UniBoost; Yu and Scully 2024).

        key = arrival - b(w),    b(w) = (1/γ)·ln(1 / (1 - e^(-γ·w)))

    With γ to infinity this is first come, first served, with γ to 0 shortest job first; where γ is the rate at which
    the tail of waiting times decays, no order has a lighter tail (for one server and known times). w is either the work
    that is predicted, or the work attained so far, which needs no prediction; running rows then must make way by the
    same order.

    A request's key stays the same while it waits.
    """

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


@dataclass(frozen=True)
class Feedback(Order):
    """Multi-level feedback without predictions (FastServe's skip-join MLFQ): level i lets a request have 2^i of work,
    then it goes a level down; in a level, first come, first served.

    A request joins at the level that its prompt fits into, since a shorter one would end before its first token: with a
    prompt of work p and levels from j = ceil(log2 p), it is at the first level i >= j with 2^(i+1) - 2^j > attained
    work. FastServe promotes what has waited for long; here only deadlines do.

    A request's key stays the same while it waits; running rows make way by it.
    """

    prices: PricesNow

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, find_level(request, self.prices()), request.times.arrival, request.row_id)


def find_level(request: Request, prices: Prices) -> int:
    """The level of a request, 0 the highest; the quantum of level 0 is the work of one token of a usual row."""
    prompt = prices.entry + prices.prompt * request.input_length
    joins = ceil(log2(max(1.0, prompt)))
    attained = prices.attained(request) if request.generated else 0.0
    return max(joins, floor(log2(attained + 2**joins)))


class FairSojourn(Order):
    """Fair sojourn protocol: in the order in which requests would end if all that wait shared the device (Friedman and
    Henderson, "Fairness and efficiency in web server protocols", SIGMETRICS 2003), by predicted work.

    V, the work that each request has had in that sharing, grows by w / n as work w is taken while n share. A request of
    work w that comes at V ends at V + w: its key, for good. A small one passes large ones that came late enough before
    it.
    """

    by_entry = True

    def __init__(self) -> None:
        self._level = 0.0  # V
        self._ends: dict[Request, float] = {}
        self._sharing: list[float] = []  # a heap of the ends that V has not reached

    def key(self, request: Request, now: float) -> Key:
        end = self._ends[request] if request in self._ends else self._level + work_left(request)
        return (request.priority, end, request.times.arrival, request.row_id)

    def enter(self, request: Request) -> None:
        self._ends[request] = self._level + work_left(request)
        heappush(self._sharing, self._ends[request])

    def leave(self, request: Request) -> None:
        del self._ends[request]

    def serve(self, request: Request, in_turn: bool) -> None:
        work = work_left(request)
        while work > 0 and self._sharing:
            step = min(work, (self._sharing[0] - self._level) * len(self._sharing))
            self._level, work = self._level + step / len(self._sharing), work - step
            if work > 0:
                self._level = max(self._level, heappop(self._sharing))


@dataclass(frozen=True)
class ResponseRatio(Order):
    """Highest response ratio next, of single requests: (waited + work) / work, the greatest first (Brinch Hansen 1971).

    The work is what is predicted, or only what is to be read of the prompt, which needs no prediction (SGLang's
    `hrrn`). No request starves: its ratio grows without end. Ratios change all the time, so requests are sorted when
    asked for.
    """

    by_key = False
    work: Callable[[Request], float]
    """Work of a request, in any unit."""

    def key(self, request: Request, now: float) -> Key:
        ratio = (now - request.times.arrival) / max(LEAST_WORK, self.work(request))
        return (request.priority, -ratio, request.times.arrival, request.row_id)

    def rank(self, in_turn: Iterable[Request], keys: Mapping[Request, Key], now: float) -> Iterator[Request]:
        def key(request: Request) -> Key:
            known = keys[request]
            return (*known[:2], *self.key(request, now)[1:]) if known[1] else known

        yield from sorted(in_turn, key=key)
