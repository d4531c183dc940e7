from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, expm1, floor, frexp, ldexp, log, log2

from scheduler.remaining_length import work_left
from scheduler.request import Request
from scheduler.waiting.order import Order
from scheduler.waiting.prices import Prices, PricesNow
from scheduler.waiting.sorted_requests import Key

LEAST_WORK = 1e-9  # keeps results finite


def boost(work: float, gamma: float) -> float:
    """b(w), seconds, of w seconds, γ in 1/s."""
    return -log(-expm1(-gamma * max(work, LEAST_WORK))) / gamma


def predicted_work(request: Request, prices: Prices) -> float:
    """In the prices' unit."""
    return prices.work(request)


def attained_work(request: Request, prices: Prices) -> float:
    """At least the prompt's, as a power of two."""
    fraction, exponent = frexp(prices.attained(request))
    return ldexp(1.0, exponent - (fraction == 0.5))


@dataclass(frozen=True)
class Boost(Order):
    """Boost (UniBoost; Yu and Scully 2024), constant while waiting:

        key = arrival - b(w),    b(w) = (1/γ)·ln(1 / (1 - e^(-γ·w)))

    γ to infinity is FCFS, to 0 SJF; at the tail's decay rate no order has a lighter tail.
    """

    prices: PricesNow
    gamma: float  # 1/s
    work: Callable[[Request, Prices], float] = predicted_work

    def key(self, request: Request, now: float) -> Key:
        arrival, prices = request.times.arrival, self.prices()
        moved = arrival - boost(self.work(request, prices) * prices.unit, self.gamma)
        return (request.priority, moved, arrival, request.row_id)


def find_level(request: Request, prices: Prices) -> int:
    """Skip-join MLFQ (FastServe): 2^i work at level i, FCFS within; 0, a token's work, is highest. A prompt joins at
    ceil(log2 p); only deadlines promote.
    """
    joins = ceil(log2(max(1.0, prices.entry + prices.prompt * request.input_length)))
    attained = prices.attained(request) if request.generated else 0.0
    return max(joins, floor(log2(attained + 2**joins)))


class FairSojourn(Order):
    """FSP (Friedman and Henderson, SIGMETRICS 2003), by ends under processor sharing: a newcomer's is V + w; V grows by
    w / n.
    """

    by_entry = True

    def __init__(self) -> None:
        self.level = 0.0  # V
        self.ends: list[float] = []  # heap, after V
        self.alone: dict[Request, float] = {}  # ends of requests by themselves

    def key(self, request: Request, now: float) -> Key:
        end = self.alone[request] if request in self.alone else self.level + work_left(request)
        return (request.priority, end, request.times.arrival, request.row_id)

    def enter(self, request: Request) -> None:
        self.alone[request] = self.level + work_left(request)
        heappush(self.ends, self.alone[request])

    def leave(self, request: Request) -> None:
        self.alone.pop(request, None)

    def serve(self, request: Request, in_turn: bool) -> None:
        work = work_left(request)
        while work > 0 and self.ends:
            step = min(work, (self.ends[0] - self.level) * len(self.ends))
            self.level, work = self.level + step / len(self.ends), work - step
            if work > 0:
                self.level = max(self.level, heappop(self.ends))


@dataclass(frozen=True)
class ResponseRatio(Order):
    """HRRN, (waited + work) / work (Brinch Hansen 1971), by predicted work or prompt (SGLang's `hrrn`); sorted on
    demand.
    """

    by_key = False
    work: Callable[[Request], float]  # any unit

    def key(self, request: Request, now: float) -> Key:
        ratio = (now - request.times.arrival) / max(LEAST_WORK, self.work(request))
        return (request.priority, -ratio, request.times.arrival, request.row_id)

    def rank(self, in_turn: Iterable[Request], keys: Mapping[Request, Key], now: float) -> Iterator[Request]:
        def key(request: Request) -> Key:
            known = keys[request]
            return (*known[:2], *self.key(request, now)[1:]) if known[1] else known

        yield from sorted(in_turn, key=key)
