"""VTC: virtual token counters (Sheng et al., OSDI'24, algorithm 2), in any order within a client. Counters add
w_p·prompt + w_q·generated tokens over the weight; returning clients are lifted to the least. A `priority` above 0
comes behind other clients.

Bound (theorem 4.4): with U = w_p·L + w_q·M (L longest prompt, M an executor's generated tokens), services of two
waiting clients differ by 2U at most, with predictions 2U + 4·w_q·M.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from math import inf
from operator import attrgetter
from typing import TypeAlias

from scheduler.request import Request, State
from scheduler.waiting.by_length import Aging
from scheduler.waiting.order import Order
from scheduler.waiting.queue import RankedQueue
from scheduler.waiting.sorted_requests import Key, QueueAhead

PROMPT_WEIGHT = 1.0  # w_p, of uncached tokens; the paper's

OUTPUT_WEIGHT = 2.0  # w_q; the paper's

MOST_CLIENTS = 4096  # remembered, least served dropped first

Shares: TypeAlias = Mapping[str, float]  # default 1


def service(request: Request, generated: float) -> float:
    return PROMPT_WEIGHT * (request.input_length - request.cached_prompt) + OUTPUT_WEIGHT * generated


def service_had(request: Request) -> float:
    return 0.0 if request.times.started is None else service(request, request.generated)


def _expected_service(request: Request) -> float:
    return service(request, max(request.predicted_length or 0.0, request.generated))


@dataclass(eq=False, slots=True)
class _FairClient:
    queue: RankedQueue
    weight: float
    counter: float = 0.0
    charged: dict[Request, float] = field(default_factory=dict)  # running

    def owed(self, request: Request) -> float:
        return (_expected_service(request) - self.charged.get(request, 0.0)) / self.weight

    def turns(self, now: float) -> Iterator[tuple[float, float, bool, float, int, Request | None]]:
        """In order, as if all before were taken; first a lower bound, since ranking takes a while."""
        counter = self.counter
        yield max(0, self.queue.best_priority), counter, bool(self.charged), -inf, 0, None
        for request in self.queue.ranked(now):
            yield max(0, request.priority), counter, bool(self.charged), request.times.arrival, request.row_id, request
            counter += self.owed(request)

    def charge(self, request: Request, service: float) -> None:
        self.counter += (service - self.charged.get(request, 0.0)) / self.weight
        self.charged[request] = service

    def settle(self) -> None:
        for request, charged in self.charged.items():
            waits = request.state is State.WAITING
            if (service := service_had(request) if waits else _expected_service(request)) != charged:
                self.charge(request, service)


@dataclass(eq=False)
class Fair(Order):
    by_key = False
    new_order: Callable[[], Order]  # for one client's requests
    shares: Shares
    aging: Aging
    name: Callable[[Request], str] = attrgetter("client")
    _clients: dict[str, _FairClient] = field(default_factory=dict)
    _active: dict[str, _FairClient] = field(default_factory=dict)  # waiting
    _served: dict[str, _FairClient] = field(default_factory=dict)  # running
    _last: _FairClient | None = None  # latest to leave

    def __post_init__(self) -> None:
        self.share, self.keeps = (one := self.new_order()).share, one.keeps

    def key(self, request: Request, now: float) -> Key:
        return (max(0, request.priority), request.times.arrival, request.row_id)

    def enter(self, request: Request) -> None:
        name, client = self.name(request), self._client(request)
        if len(self._clients) >= MOST_CLIENTS and name not in self._clients:
            idle = [name for name, one in self._clients.items() if not one.charged and not one.queue]
            for one in sorted(idle, key=lambda name: self._clients[name].counter)[: MOST_CLIENTS // 2]:
                del self._clients[one]
        self._clients[name] = client
        if name not in self._active:
            self._settle()  # no credit for absence
            client.counter = max(client.counter, self._least())
            self._active[name] = client
        client.queue.add(request)

    def revise(self, request: Request) -> None:
        self._client(request).queue.revise(request)

    def leave(self, request: Request) -> None:
        client = self._client(request)
        client.queue.discard(request)
        if not client.queue:
            self._last = self._active.pop(self.name(request))

    def serve(self, request: Request, in_turn: bool) -> None:
        client = self._client(request)
        client.queue.serve(request)
        client.charge(request, _expected_service(request))
        self._served[self.name(request)] = client

    def ended(self, request: Request) -> None:
        client = self._served.get(name := self.name(request))
        if client is not None and request in client.charged:
            client.charge(request, service_had(request))
            client.queue.order.ended(request)
            del client.charged[request]
            if not client.charged:
                del self._served[name]

    def rank(self, in_turn: Iterable[Request], keys: Mapping[Request, Key], now: float) -> Iterator[Request]:
        self._settle()
        turns = merge(*(client.turns(now) for client in self._active.values()))
        return (request for *_, request in turns if request is not None)

    def ahead_of_newcomer(self, request: Request, by_key: QueueAhead, now: float) -> QueueAhead:
        """As if clients took turns, by their counters at the latest decision."""
        own = self._client(request)
        before = own.queue.ahead(request, now)
        turns, counter = before.place, max(own.counter, self._least())
        for client in self._active.values():
            if client is not own and (most := turns + (client.counter < counter)):
                others = client.queue.total()
                before = before.and_share(others, min(others.place, most))
        return before

    def _client(self, request: Request) -> _FairClient:
        known = self._clients.get(self.name(request))
        return known or _FairClient(RankedQueue(self.new_order(), self.aging), self.shares.get(self.name(request), 1.0))

    def _least(self) -> float:
        if self._active:
            return min(client.counter for client in self._active.values())
        return 0.0 if self._last is None else self._last.counter

    def _settle(self) -> None:
        for client in self._served.values():
            client.settle()


def share_out(new_order: Callable[[], Order], shares: Shares, aging: Aging) -> Fair:
    """First between addresses (`address/own name`), so that new names gain nothing."""
    return Fair(lambda: Fair(new_order, {}, aging), shares, aging, lambda request: request.client.partition("/")[0])
