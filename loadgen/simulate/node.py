"""A simulated node, the real dispatcher over simulated executors; and routers, which see a node's `requests` and
`load`.
"""

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Unpack

from engine.kv.host_store import HostStore
from engine.kv.prefix_cache import CHUNK, PrefixCache
from engine.messages import Report
from engine.sampling.params import SamplingParams
from engine.simulated.batch import SimulatedKv, SimulatedRow
from engine.simulated.executor import SimulatedExecutor
from engine.simulated.machine import Machine
from loadgen.simulate.prediction import Forecast, split_forecast
from scheduler.assembly import SchedulerParts
from scheduler.clock import Clock
from scheduler.dispatcher import Dispatcher
from scheduler.request import Request
from scheduler.submission import Known
from scheduler.wait_estimate.node_router import Job, NodeLoad, WorkRouter


class VirtualClock:
    _time = 0.0

    def now(self) -> float:
        return self._time

    def move_to(self, time: float) -> None:
        self._time = max(self._time, time)

    async def wait(self, event: asyncio.Event, until: float | None) -> None:
        """Simulated time is there at once."""
        if until is None:
            await event.wait()
        elif not event.is_set():
            self.move_to(until)


class Node:
    """A whole server. The clock's owner moves it to `due`, calls `advance`, and so on."""

    def __init__(self, parts: SchedulerParts, machine: Machine, clock: Clock) -> None:
        self._clock = clock
        self._batcher = parts.batcher
        store: HostStore[SimulatedRow] = HostStore()
        chunk = CHUNK if machine.prefix_cache_tokens else 1
        prefixes = PrefixCache[SimulatedKv](machine.prefix_cache_tokens, chunk, clock.now)
        self.executors = [
            SimulatedExecutor(index, machine, clock.now, self._receive, store=store, prefixes=prefixes)
            for index in range(machine.workers)
        ]
        self._dispatcher = Dispatcher(parts, self.executors, clock, kept_prefix=prefixes.length)
        self._runs_ahead = machine.runs_ahead
        self._changed = False  # since the last decisions
        self._wake = math.inf
        self.due = math.inf  # infinity: the next request

    @property
    def requests(self) -> int:
        return self._dispatcher.table.requests_waiting + self._dispatcher.table.requests_running

    def load(self) -> NodeLoad:
        return self._dispatcher.waits.load()

    def submit(
        self, prompt: Sequence[int], sampling: SamplingParams, forecast: Forecast, **known: Unpack[Known]
    ) -> Request:
        """It is handled when the node advances, now; raises as the dispatcher does."""
        predicted, distribution = split_forecast(forecast)
        self._changed, self.due = True, self._clock.now()
        known |= Known(predicted_length=predicted, distribution=distribution)
        return self._dispatcher.submit(prompt, sampling, **known)

    def advance(self) -> None:
        now = self._clock.now()
        for executor in self.executors:
            if executor.due <= now:
                executor.advance()
            if self._runs_ahead and executor.due <= now:
                executor.advance()
        if self._changed or self._wake <= self._clock.now():
            self._changed = False
            self._dispatcher.dispatch()
            wake, now = self._batcher.wake_at(self._clock.now()), self._clock.now()
            self._wake = math.inf if wake is None or wake <= now else wake
        self.due = min(self._wake, min(executor.due for executor in self.executors))

    def _receive(self, report: Report) -> None:
        self._dispatcher.receive(report)
        self._changed = True


PERIOD = 1.0  # seconds between load reports, as behind Ray Serve


class Router:
    due = math.inf  # when it next looks at the nodes

    def __init__(self) -> None:
        self._turns = itertools.count()

    def look(self, nodes: Sequence[Node], now: float) -> None: ...

    def choose(self, nodes: Sequence[Node], job: Job, now: float) -> int:
        return next(self._turns) % len(nodes)


class PowerOfTwo(Router):
    """The node with fewer requests of two drawn, as in Ray Serve; counts are immediate."""

    def __init__(self) -> None:
        self._random = random.Random(0)

    def choose(self, nodes: Sequence[Node], job: Job, now: float) -> int:
        drawn = self._random.sample(range(len(nodes)), min(2, len(nodes)))
        return min(drawn, key=lambda index: nodes[index].requests)


class RouteByWork(Router):
    """The node with the least predicted work left (scheduler/placement.py)."""

    def __init__(self) -> None:
        self.due = 0.0
        self._router: WorkRouter[int] = WorkRouter()

    def look(self, nodes: Sequence[Node], now: float) -> None:
        self.due = now + PERIOD
        for index, node in enumerate(nodes):
            self._router.tell(index, node.load())

    def choose(self, nodes: Sequence[Node], job: Job, now: float) -> int:
        chosen = self._router.rank(range(len(nodes)), job, now)[0]
        self._router.note_sent(chosen, job, now)
        return chosen


ROUTERS: Mapping[str, Callable[[], Router]] = {"work": RouteByWork, "pow2": PowerOfTwo, "round-robin": Router}
