"""What the order of the queue changes: each answer's latency beside the one that it would have had by order of arrival.

A virtual server that serves by order of arrival is played with the work that the executors really do. It has as many
slots, and a request takes one for as many units of work as its answer has tokens. While requests wait, all slots share
the work that is done, and prompts that are begun then count as work too, of whom they are; else each row that runs does
a unit a step. A request is played once it and all that came before it have ended, since their lengths are known then:
one that lasts long delays the figures, and no request.

Requests in the background are left out, and priorities are not known. Where the virtual server ends later than the
executors did, its time goes on at their latest pace.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace

from scheduler.request import Request, State
from scheduler.waiting.prices import PricesNow

INTERVAL = 0.05  # least seconds between two moments that are kept
MOST_OPEN = 20_000  # requests that may wait to be played; beyond it the oldest is left out


@dataclass(slots=True)
class Comparison:
    """Sums since the start, over requests that ended with an answer."""

    requests: int = 0
    latency: float = 0.0  # seconds from arrival to end
    latency_by_arrival: float = 0.0
    per_token: float = 0.0  # seconds from arrival to end for each generated token: normalized latency
    per_token_by_arrival: float = 0.0
    latest: float = 0.0  # most seconds that an answer ended later than by order of arrival

    def add(self, latency: float, by_arrival: float, tokens: int) -> None:
        """Count an answer by its two latencies in seconds."""
        self.requests += 1
        self.latency += latency
        self.latency_by_arrival += by_arrival
        self.per_token += latency / tokens
        self.per_token_by_arrival += by_arrival / tokens
        self.latest = max(self.latest, latency - by_arrival)


@dataclass(slots=True)
class _Moments:
    """How much work a slot had done by each moment, from the oldest that is still asked for to the latest."""

    done: list[float] = field(default_factory=lambda: [0.0])
    times: list[float] = field(default_factory=lambda: [0.0])
    pace: float = 0.0  # seconds a unit of work, in the latest second

    def add(self, work: float, now: float) -> None:
        """Let a slot have done this much more by now."""
        total = self.done[-1] + work
        if len(self.times) > 1 and now - self.times[-2] < INTERVAL:
            self.done[-1], self.times[-1] = total, now
        else:
            self.done.append(total)
            self.times.append(now)
        back = max(0, bisect_left(self.times, now - 1.0) - 1)
        if total > self.done[back]:
            self.pace = (now - self.times[back]) / (total - self.done[back])

    def when(self, work: float) -> float:
        """The moment by which a slot had done this much, or will have."""
        place = bisect_left(self.done, work)
        if place == len(self.done):
            return self.times[-1] + (work - self.done[-1]) * self.pace
        if place == 0:
            return self.times[0]
        before, after = self.done[place - 1], self.done[place]
        begin, end = self.times[place - 1], self.times[place]
        return begin + (work - before) / (after - before) * (end - begin)

    def forget(self, work: float) -> None:
        """Drop the moments before a slot had done this much."""
        old = bisect_left(self.done, work) - 1
        if old > len(self.done) // 2:
            del self.done[:old], self.times[:old]


@dataclass(slots=True)
class _Came:
    """What is known of a request that is not played yet, in units of work a slot."""

    at: float  # done when it came
    prompt: float = 0.0  # its prompt, where that counts


class ByArrival:
    """All methods belong to the event loop's thread."""

    def __init__(self, slots: Callable[[], int], prices: PricesNow) -> None:
        """`slots` tells how many the executors have now."""
        self.comparison = Comparison()
        self._slots = slots
        self._prices = prices
        self._moments = _Moments()
        self._free = [0.0]  # heap: the work at which each slot is free
        self._open: OrderedDict[Request, _Came] = OrderedDict()

    def arrive(self, request: Request, now: float, *, idle: bool) -> None:
        """A request has come; `idle`: the executors have had nothing to do until now."""
        if request.in_background:
            return
        if idle:  # meanwhile the virtual server went on with what it may still have had
            pace = self._moments.pace
            self._moments.add((now - self._moments.times[-1]) / pace if pace else 0.0, now)
        self._open[request] = _Came(self._moments.done[-1])
        if len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)

    def forget(self, request: Request) -> None:
        """A request that has come is not taken in after all."""
        self._open.pop(request, None)

    def work(self, tokens: int, begun: Iterable[Request], rows: int, now: float, *, waiting: bool) -> None:
        """The executors have made tokens for `rows` rows and begun with prompts, while other requests waited or not."""
        slots = max(1, self._slots())
        while len(self._free) < slots:
            heappush(self._free, self._moments.done[-1])
        while len(self._free) > slots:
            heappop(self._free)
        work = tokens / max(1, rows)
        if waiting:
            work = (tokens + sum(map(self._begin, begun))) / slots
        self._moments.add(work, now)
        while self._open and next(iter(self._open)).state.is_final:
            self._play(*self._open.popitem(last=False))
        if self._open:
            self._moments.forget(min(next(iter(self._open.values())).at, self._free[0]))

    def _begin(self, request: Request) -> float:
        """Work of a prompt that counts from now on; none in the background."""
        if (came := self._open.get(request)) is None:
            return 0.0
        prices = self._prices()
        came.prompt = prices.entry + prices.prompt * (request.input_length - request.cached_prompt)
        return came.prompt

    def _play(self, request: Request, came: _Came) -> None:
        if not request.runs:
            return
        end = max(came.at, self._free[0]) + came.prompt + request.generated
        heapreplace(self._free, end)
        arrival, ended = request.times.arrival, request.times.end
        if request.state is State.FINISHED and request.generated and ended is not None:
            self.comparison.add(ended - arrival, max(0.0, self._moments.when(end) - arrival), request.generated)
