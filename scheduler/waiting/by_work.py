"""Published orders by work: boost, multi-level feedback, fair sojourn, highest response ratio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, expm1, floor, frexp, ldexp, log, log2

from scheduler.remaining_length import work_left
from scheduler.request import Request
from scheduler.waiting.order import Order
from scheduler.waiting.prices import Prices, PricesNow
from scheduler.waiting.sorted_requests import Key

LEAST_WORK = 1e-9  # keeps boosts finite and ratios defined


def boost(work: float, gamma: float) -> float:
    """b(w) in seconds, for w seconds of work and γ in 1/s."""
    return -log(-expm1(-gamma * max(work, LEAST_WORK))) / gamma


def predicted_work(request: Request, prices: Prices) -> float:
    """Work still to do, in units of the prices."""
    return prices.work(request)


def attained_work(request: Request, prices: Prices) -> float:
    """Work done, at least the prompt's, rounded up to a power of two, so that keys change at geometric levels only."""
    fraction, exponent = frexp(prices.attained(request))
    return ldexp(1.0, exponent - (fraction == 0.5))


@dataclass(frozen=True)
class Boost(Order):
    """Boost: by arrival, cheap requests as if they had come earlier (UniBoost; Yu and Scully 2024).

        key = arrival - b(w),    b(w) = (1/γ)·ln(1 / (1 - e^(-γ·w)))

    γ to infinity is FCFS, γ to 0 SJF; with γ the decay rate of the tail of waits, no order has a lighter tail (one
    server, known times). w is predicted or attained work; with the latter running rows make way by the same order.
    Keys are constant while waiting.
    """

    prices: PricesNow
    gamma: float  # 1/s of the device's time
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
    """Multi-level feedback without predictions (FastServe's skip-join MLFQ): 2^i work at level i, then a level down;
    FCFS within a level.

    A prompt of work p joins at j = ceil(log2 p), else it would be demoted before its first token: at the first i >= j
    with 2^(i+1) - 2^j > attained work. FastServe promotes old requests; here only deadlines do.
    """

    prices: PricesNow

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, find_level(request, self.prices()), request.times.arrival, request.row_id)


def find_level(request: Request, prices: Prices) -> int:
    """0 is the highest; its quantum is the work of one token of a usual row."""
    prompt = prices.entry + prices.prompt * request.input_length
    joins = ceil(log2(max(1.0, prompt)))
    attained = prices.attained(request) if request.generated else 0.0
    return max(joins, floor(log2(attained + 2**joins)))


class FairSojourn(Order):
    """Fair sojourn protocol: in the order in which requests would end under processor sharing, by predicted work
    (Friedman and Henderson, SIGMETRICS 2003).

    V, each request's share so far, grows by w / n as work w is taken while n share; a request of work w that comes at
    V gets the key V + w for good.
    """

    by_entry = True

    def __init__(self) -> None:
        self._level = 0.0  # V
        self._ends: dict[Request, float] = {}
        self._sharing: list[float] = []  # heap of ends that V has not reached

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
    """Highest response ratio next, (waited + work) / work (Brinch Hansen 1971), by predicted work or unread prompt
    (SGLang's `hrrn`). Nothing starves. Ratios change all the time, so requests are sorted when asked for.
    """

    by_key = False
    work: Callable[[Request], float]  # in any unit

    def key(self, request: Request, now: float) -> Key:
        ratio = (now - request.times.arrival) / max(LEAST_WORK, self.work(request))
        return (request.priority, -ratio, request.times.arrival, request.row_id)

    def rank(self, in_turn: Iterable[Request], keys: Mapping[Request, Key], now: float) -> Iterator[Request]:
        def key(request: Request) -> Key:
            known = keys[request]
            return (*known[:2], *self.key(request, now)[1:]) if known[1] else known

        yield from sorted(in_turn, key=key)
