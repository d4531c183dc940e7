"""Fair shares between clients by virtual token counters (VTC; Sheng et al., OSDI'24, algorithm 2).

A client's counter is its service, w_p·prompt + w_q·generated tokens, over its weight; the least is served next. A
client that returns is lifted to the least counter in the queue. Another order ranks requests within a client. A
`priority` above 0 comes behind all other clients; below 0 it counts within its client only. Predicted lengths are
charged when taken and corrected later (their variant with prediction).

Bound (theorem 4.4): with L the longest prompt, M the most tokens that an executor's rows may generate and U = w_p·L +
w_q·M, the weighted services of two clients that both wait differ by at most 2U, with predictions 2U + 4·w_q·M.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter
from typing import TypeAlias

from scheduler.request import Request, State
from scheduler.waiting.by_length import Aging
from scheduler.waiting.order import Order
from scheduler.waiting.queue import RankedQueue
from scheduler.waiting.sorted_requests import Ahead, Key

PROMPT_WEIGHT = 1.0  # w_p, for each prompt token that is not cached; the paper's

OUTPUT_WEIGHT = 2.0  # w_q, for each generated token; the paper's

MOST_CLIENTS = 4096  # remembered; beyond that, absent clients with the least service are forgotten

Shares: TypeAlias = Mapping[str, float]  # by client; 1 for others


def service(request: Request, generated: float) -> float:
    """Weighted tokens of a request after `generated` tokens."""
    return PROMPT_WEIGHT * (request.input_length - request.cached_prompt) + OUTPUT_WEIGHT * generated


def service_had(request: Request) -> float:
    return 0.0 if request.times.started is None else service(request, request.generated)


def _expected_service(request: Request) -> float:
    """Service charged while running: predicted, or had if that is more."""
    return service(request, max(request.predicted_length or 0.0, request.generated))


@dataclass(eq=False, slots=True)
class _FairClient:
    queue: RankedQueue
    weight: float
    counter: float = 0.0  # by weight
    charged: dict[Request, float] = field(default_factory=dict)  # taken from the queue and not ended

    def owed(self, request: Request) -> float:
        """Service that a waiting request will be charged, by weight."""
        return (_expected_service(request) - self.charged.get(request, 0.0)) / self.weight

    def turns(self, now: float) -> Iterator[tuple[int, float, bool, float, int, Request]]:
        """Its requests in order, each with (priority, counter, runs, arrival) as if all before it were taken."""
        counter = self.counter
        for request in self.queue.ranked(now):
            yield max(0, request.priority), counter, bool(self.charged), request.times.arrival, request.row_id, request
            counter += self.owed(request)

    def charge(self, request: Request, service: float) -> None:
        self.counter += (service - self.charged.get(request, 0.0)) / self.weight
        self.charged[request] = service

    def settle(self) -> None:
        """Charge each request as of now."""
        for request in list(self.charged):
            runs = request.state is State.ASSIGNED or request.state is State.RUNNING
            self.charge(request, _expected_service(request) if runs else service_had(request))
            if request.state.is_final:
                del self.charged[request]


class Fair(Order):
    """Clients take turns by their counters; each has its own queue."""

    by_key = False

    def __init__(
        self,
        new_order: Callable[[], Order],
        shares: Shares,
        aging: Aging,
        name: Callable[[Request], str] = attrgetter("client"),
    ) -> None:
        """`new_order` makes the order of one client's requests, which `name` names."""
        self._new_queue: Callable[[], RankedQueue] = lambda: RankedQueue(new_order(), aging)
        self._name = name
        self._shares = shares
        self._clients: dict[str, _FairClient] = {}
        self._active: dict[str, _FairClient] = {}  # with waiting requests
        self._served: dict[str, _FairClient] = {}  # charged for requests that have not ended
        self._last: _FairClient | None = None  # whose request left the queue last

    def key(self, request: Request, now: float) -> Key:
        return (max(0, request.priority), request.times.arrival, request.row_id)

    def enter(self, request: Request) -> None:
        name, client = self._name(request), self._client(request)
        if name not in self._clients:
            self._forget_some()
            self._clients[name] = client
        if name not in self._active:
            self._settle()  # no credit for time away
            client.counter = max(client.counter, self._least())
            self._active[name] = client
        client.queue.add(request)

    def revise(self, request: Request) -> None:
        self._client(request).queue.revise(request)

    def leave(self, request: Request) -> None:
        client = self._client(request)
        client.queue.discard(request)
        if not client.queue:
            self._last = self._active.pop(self._name(request))

    def serve(self, request: Request, in_turn: bool) -> None:
        client = self._client(request)
        client.queue.serve(request)
        client.charge(request, _expected_service(request))
        self._served[self._name(request)] = client

    def rank(self, in_turn: Iterable[Request], keys: Mapping[Request, Key], now: float) -> Iterator[Request]:
        self._settle()
        turns = merge(*(client.turns(now) for client in self._active.values()))  # no two compare equal
        return (request for *_, request in turns)

    def ahead_of_newcomer(self, request: Request, by_key: Ahead, now: float) -> Ahead:
        """As if clients took turns request by request, those served least first."""
        self._settle()
        own = self._client(request)
        before = own.queue.ahead(request, now)
        turns, counter = before.place, max(own.counter, self._least())
        for client in self._active.values():
            if client is not own:
                others = client.queue.total()
                before = before.and_share(others, min(others.place, turns + (client.counter < counter)))
        return before

    def _client(self, request: Request) -> _FairClient:
        known = self._clients.get(self._name(request))
        return known or _FairClient(self._new_queue(), self._shares.get(self._name(request), 1.0))

    def _least(self) -> float:
        """The least counter in the queue, or of the last client to leave it."""
        if self._active:
            return min(client.counter for client in self._active.values())
        return 0.0 if self._last is None else self._last.counter

    def _settle(self) -> None:
        for name, client in list(self._served.items()):
            client.settle()
            if not client.charged:
                del self._served[name]

    def _forget_some(self) -> None:
        if len(self._clients) < MOST_CLIENTS:
            return
        idle = [name for name, one in self._clients.items() if not one.charged and not one.queue]
        idle.sort(key=lambda name: self._clients[name].counter)
        for name in idle[: MOST_CLIENTS // 2]:
            del self._clients[name]


def share_out(new_order: Callable[[], Order], shares: Shares, aging: Aging) -> Fair:
    """Fair shares between clients, and first between addresses where clients name themselves (`address/own name`), so
    that a new name in each call gains nothing.
    """
    return Fair(lambda: Fair(new_order, {}, aging), shares, aging, lambda request: request.client.partition("/")[0])
