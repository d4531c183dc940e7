"""Plays a schedule of requests in an open loop: a request is due at its time, be those before it answered or not.

So no slow answer delays the next question, and waiting that a closed loop would hide is seen. Latencies also count
from when a request was due, not only from when it went out ("coordinated omission"; Gil Tene, "How NOT to Measure
Latency"). It knows no HTTP: how a request is sent is handed in. It also watches the load of the client itself: one
that is short of CPU reads tokens late and blames the server, so a result is only worth as much as this.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol, TypeAlias

from loadgen.bench.measures import find_percentile
from loadgen.client.request import Outcome, PreparedRequest
from models.progress import Bar, Bars

INTERVAL = 0.02
BUSY_CPU = 0.8
BUSY_LAG = 0.02


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """The load of the client in one run. Lags are seconds by which a timer of its event loop fired late."""

    cpu: float
    """CPU seconds per second of the run; the event loop has one core at most."""
    mean_lag: float
    p99_lag: float
    max_lag: float

    @property
    def warning(self) -> str | None:
        """A warning that the times of the run are not to be trusted; None when the client kept up."""
        if self.cpu >= BUSY_CPU:
            return f"the load generator used {self.cpu:.0%} of a core: it may have been the bottleneck, not the server"
        if self.p99_lag >= BUSY_LAG:
            return (
                f"the load generator's event loop was late by up to {self.p99_lag * 1000:.0f} ms (99th percentile): "
                "it got too little CPU, and latencies include that"
            )
        return None


@asynccontextmanager
async def watch_load() -> AsyncIterator[Callable[[], ClientLoad]]:
    """Watch the running event loop while entered; yields what tells the load since then."""
    lags: list[float] = []
    begin, begin_cpu = time.perf_counter(), time.process_time()

    def measure() -> ClientLoad:
        wall, late = time.perf_counter() - begin, sorted(lags or [0.0])
        return ClientLoad(
            cpu=(time.process_time() - begin_cpu) / wall if wall > 0 else 0.0,
            mean_lag=fmean(late),
            p99_lag=find_percentile(late, 99.0),
            max_lag=late[-1],
        )

    task = asyncio.create_task(_note_lags(lags))
    try:
        yield measure
    finally:
        task.cancel()


async def _note_lags(lags: list[float]) -> None:
    while True:
        due = time.perf_counter() + INTERVAL
        await asyncio.sleep(INTERVAL)
        lags.append(max(0.0, time.perf_counter() - due))


Clock: TypeAlias = Callable[[], float]
Send: TypeAlias = Callable[[PreparedRequest, float, Clock], Awaitable[Outcome]]
"""A request, when it was due, and the seconds since the start -> its outcome."""


class Observer(Protocol):
    """Follows a run."""

    def sent(self) -> None:
        """A request goes out."""
        ...

    def ended(self, outcome: Outcome) -> None:
        """A request came to its end."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """The outcomes of a schedule."""

    outcomes: tuple[Outcome, ...]
    """One for each request that came to an end, in the order of the schedule."""
    planned: int
    duration: float
    """Seconds from the start to the last end."""
    client: ClientLoad

    @property
    def interrupted(self) -> bool:
        """Whether the run was stopped before every request had its end."""
        return len(self.outcomes) < self.planned


async def play(
    requests: Sequence[PreparedRequest],
    times: Sequence[float],
    send: Send,
    observer: Observer,
    max_concurrency: int | None = None,
    think_time: float = 0.0,
) -> Run:
    """Send each request at its time (seconds after the start, ascending) and wait until all have ended.

    A conversation's next request is sent `think_time` seconds after the answer that it follows, and a conversation ends
    with an answer that does not come.

    Cancelling it stops the run: what runs is dropped, what ended is returned.
    """
    gate = nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    begin = time.perf_counter()
    player = _Player(send, observer, gate, lambda: time.perf_counter() - begin, think_time)
    async with watch_load() as measure:
        await player.play(requests, times)
        duration, load = time.perf_counter() - begin, measure()
    outcomes = sorted(player.outcomes, key=lambda outcome: outcome.index)
    return Run(tuple(outcomes), len(requests) + player.followed, duration, load)


@dataclass(slots=True)
class _Player:
    """The requests of one run that are under way, and those that have ended."""

    send: Send
    observer: Observer
    gate: AbstractAsyncContextManager[None]
    clock: Clock
    think_time: float
    followed: int = 0
    """Requests that followed others, or were to."""
    outcomes: list[Outcome] = field(default_factory=list)

    async def play(self, requests: Sequence[PreparedRequest], times: Sequence[float]) -> None:
        """Send all requests; returns when they have ended, or soon after a cancellation."""
        try:
            async with asyncio.TaskGroup() as running:
                for request, due in zip(requests, times, strict=True):
                    await self._until(due)
                    running.create_task(self._converse(request, due))
        except asyncio.CancelledError:
            # The user stops the run and wants to see what came of it.
            if (task := asyncio.current_task()) is not None:
                task.uncancel()

    async def _until(self, due: float) -> None:
        """Waits for a time; of many requests that are due at once, lets each go out before the next is made."""
        await asyncio.sleep(0)
        while (wait := due - self.clock()) > 0:
            await asyncio.sleep(wait)

    async def _converse(self, request: PreparedRequest, due: float) -> None:
        """Send a request, and those that follow it."""
        while True:
            async with self.gate:
                self.observer.sent()
                outcome = await self.send(request, due, self.clock)
            self.outcomes.append(outcome)
            self.observer.ended(outcome)
            if request.follow_up is None or not outcome.completed:
                return
            self.followed += 1
            request, due = request.follow_up(outcome.text), self.clock() + self.think_time
            await self._until(due)


class RequestBar:
    """An Observer of a run that shows its counts in a bar."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._running = 0
        self._troubled = 0  # failed, rejected or cancelled

    def sent(self) -> None:
        self._running += 1
        self._bar.show(self._bar.done, note=self._counts())

    def ended(self, outcome: Outcome) -> None:
        self._running -= 1
        self._troubled += not outcome.completed
        self._bar.show(self._bar.done + 1, note=self._counts())

    def _counts(self) -> str:
        troubled = f", {self._troubled} not completed" if self._troubled else ""
        return f"{self._running} running{troubled}"


@contextmanager
def show_run(title: str, total: int) -> Iterator[RequestBar]:
    """Show the bar of one run of `total` requests."""
    with Bars(threaded=True) as bars:
        yield RequestBar(bars.begin(title, total))
