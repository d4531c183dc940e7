"""Fair shares between clients: virtual token counters (VTC; Sheng et al., OSDI'24, algorithm 2).

Each client has a counter of the service that it has had, w_p·prompt + w_q·generated tokens, divided by its weight; the
client with the least counter is served next. A client that returns to the queue is lifted to the least counter there,
so that none saves up service for later. Which of one client's requests goes first is another queue's decision: by
arrival, as published, or any other. A `priority` above 0 puts a request behind those of all other clients; one below 0
counts within its client only, or a client could take all by it.

Where lengths are predicted, an answer is charged for as long as it is predicted when it is taken from the queue, and
corrected as it comes (their variant with length prediction); else as it comes. What a request is charged for is looked
up when the queue is asked, so no part has to report it.

The bound (as their theorem 4.4). Let L be the longest prompt, M the most tokens that all rows which an executor holds
at once may generate, and U = w_p·L + w_q·M. A client whose counter is not the least is not served, so between any two
moments the services, by weight, of any two clients that wait all the while differ by 2U at most. What is predicted may
be charged too early or be given back, by w_q·M each: then by 2U + 4·w_q·M at most. It holds whatever clients ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter
from typing import TypeAlias

from scheduler.request import Request, State
from scheduler.waiting.by_length import Aging
from scheduler.waiting.queue import Ahead, Key, Order
from scheduler.waiting.ranked import RankedQueue

PROMPT_WEIGHT = 1.0
"""w_p: service of a prompt's token that is read. One that is kept from earlier prompts is no service."""

OUTPUT_WEIGHT = 2.0
"""w_q: service of a generated token. Both are the paper's."""

MOST_CLIENTS = 4096
"""Clients that are remembered; of those beyond that have nothing here, the ones served least are forgotten."""

Shares: TypeAlias = Mapping[str, float]
"""Weights by client; 1 for all others."""


def service(request: Request, generated: float) -> float:
    """Service of a request once so many tokens are generated, in weighted tokens."""
    return PROMPT_WEIGHT * (request.input_length - request.cached_prompt) + OUTPUT_WEIGHT * generated


def service_had(request: Request) -> float:
    """Service that a request has had, in weighted tokens."""
    return 0.0 if request.times.started is None else service(request, request.generated)


def _expected_service(request: Request) -> float:
    """Service that a request is charged for while it runs: as much as is predicted, or as it had if that is more."""
    return service(request, max(request.predicted_length or 0.0, request.generated))


@dataclass(eq=False, slots=True)
class _Client:
    queue: RankedQueue
    weight: float
    counter: float = 0.0
    """Service charged, by weight."""
    charged: dict[Request, float] = field(default_factory=dict)
    """Service charged for each request that was taken from the queue and has not ended."""

    def owed(self, request: Request) -> float:
        """Service that a request in the queue will be charged for, by weight."""
        return (_expected_service(request) - self.charged.get(request, 0.0)) / self.weight

    def turns(self, now: float) -> Iterator[tuple[int, float, bool, float, int, Request]]:
        """The client's requests in their order, each after what clients take turns by, as if all before it were taken:
        priority, counter, and, where these tie, as they do when one returns, whether it has requests that run, and
        arrival."""
        counter = self.counter
        for request in self.queue.ranked(now):
            yield max(0, request.priority), counter, bool(self.charged), request.times.arrival, request.row_id, request
            counter += self.owed(request)

    def charge(self, request: Request, service: float) -> None:
        """Charge a request for so much service in all."""
        self.counter += (service - self.charged.get(request, 0.0)) / self.weight
        self.charged[request] = service

    def settle(self) -> None:
        """Charge each request as it stands by now; one that does not run, for what it had."""
        for request in list(self.charged):
            runs = request.state is State.ASSIGNED or request.state is State.RUNNING
            self.charge(request, _expected_service(request) if runs else service_had(request))
            if request.state.is_final:
                del self.charged[request]


class Fair(Order):
    """Clients take turns by their counters, each with a queue of its own."""

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
        self._clients: dict[str, _Client] = {}
        self._active: dict[str, _Client] = {}  # those with requests that wait
        self._served: dict[str, _Client] = {}  # those that are charged for requests which have not ended
        self._last: _Client | None = None  # the one whose last request left the queue latest

    def key(self, request: Request, now: float) -> Key:
        return (max(0, request.priority), request.times.arrival, request.row_id)

    def enter(self, request: Request) -> None:
        name, client = self._name(request), self._client(request)
        if name not in self._clients:
            self._forget_some()
            self._clients[name] = client
        if name not in self._active:
            self._settle()  # what it did not ask for before, it does not get now
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
        turns = merge(*(client.turns(now) for client in self._active.values()))  # no two compare as equal
        return (request for *_, request in turns)

    def ahead_of_newcomer(self, request: Request, by_key: Ahead, now: float) -> Ahead:
        """Counted as if clients took turns request by request, those that were served less one ahead."""
        self._settle()
        own = self._client(request)
        before = own.queue.ahead(request, now)
        turns, counter = before.place, max(own.counter, self._least())
        for client in self._active.values():
            if client is not own:
                others = client.queue.total()
                before = before.and_share(others, min(others.place, turns + (client.counter < counter)))
        return before

    def _client(self, request: Request) -> _Client:
        """The request's client, which may be a new one."""
        known = self._clients.get(self._name(request))
        return known or _Client(self._new_queue(), self._shares.get(self._name(request), 1.0))

    def _least(self) -> float:
        """The least counter in the queue; of the client that left it last, where it is empty."""
        if self._active:
            return min(client.counter for client in self._active.values())
        return 0.0 if self._last is None else self._last.counter

    def _settle(self) -> None:
        for name, client in list(self._served.items()):
            client.settle()
            if not client.charged:
                del self._served[name]

    def _forget_some(self) -> None:
        """Make room for a new client."""
        if len(self._clients) < MOST_CLIENTS:
            return
        idle = [name for name, one in self._clients.items() if not one.charged and not one.queue]
        idle.sort(key=lambda name: self._clients[name].counter)
        for name in idle[: MOST_CLIENTS // 2]:
            del self._clients[name]


def share_out(new_order: Callable[[], Order], shares: Shares, aging: Aging) -> Fair:
    """An order between clients, and where clients choose names of their own, between addresses first: a client whose
    name is `address/own name` shares the weight of its address, so that a new name in each call gains nothing.
    """
    return Fair(lambda: Fair(new_order, {}, aging), shares, aging, lambda request: request.client.partition("/")[0])
