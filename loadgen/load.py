"""Which request is due when, decided before a run and repeatable by its seed; and a run in an open loop: a request is
due at its time, be those before it answered or not.

So no slow answer delays the next question, and waiting that a closed loop would hide is seen. Latencies also count
from when a request was due, not only from when it went out ("coordinated omission"; Gil Tene, "How NOT to Measure
Latency"). It knows no HTTP: how a request is sent is handed in. It also watches the load of the client itself: one
that is short of CPU reads tokens late and blames the server, so a result is only worth as much as this.

The gaps of a process with rate r and burstiness b follow Gamma(shape=b, scale=1/(r*b)): mean 1/r, coefficient of
variation 1/sqrt(b). So b = 1 is a Poisson process, less is burstier, more is smoother and infinity is a metronome.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from loadgen.bench.measures import divide, find_percentile
from loadgen.client.request import Clock, Outcome, PreparedRequest, Prompt, RequestForm
from loadgen.result_file import Json
from scheduler.clock import background


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A process: requests per second (infinity: all at once) and burstiness, both above 0."""

    rate: float = math.inf
    burstiness: float = 1.0


def arrival_times(arrivals: Arrivals, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """When each of `count` requests arrives: seconds after the start, ascending.

    Times are scaled so that the last request arrives at count / rate: that is also what
    `vllm bench serve` does, and without it the rate offered differs by some percent from seed to seed.
    """
    if math.isinf(arrivals.rate):
        return np.zeros(count)
    shape = arrivals.burstiness
    gaps = np.ones(count) if math.isinf(shape) else rng.standard_gamma(shape, count) / shape  # of mean 1
    times = np.cumsum(gaps / arrivals.rate)
    if count and times[-1] > 0:
        times *= count / arrivals.rate / times[-1]
    return np.asarray(times)


ARRIVALS, CANCELLATIONS = range(2)
"""Independent streams of random numbers, so that cancelling some requests does not move the others."""


def schedule(
    prompts: Sequence[Prompt],
    form: RequestForm,
    arrivals: Arrivals | None = None,
    seed: int = 0,
    cancel_rate: float = 0.0,
    cancel_delay: float = 1.0,
) -> list[PreparedRequest]:
    """The requests of a run in the order in which they are due; without `arrivals`, prompts are due at their own times.

    Of a share `cancel_rate` of the requests the client leaves after `cancel_delay` seconds. Raises UserError.
    """
    if arrivals is None:
        prompts = sorted(prompts, key=lambda prompt: prompt.arrival)
        times = [prompt.arrival for prompt in prompts]
    else:
        times = arrival_times(arrivals, len(prompts), np.random.default_rng([seed, ARRIVALS])).tolist()
    leaves = np.random.default_rng([seed, CANCELLATIONS]).random(len(prompts)) < cancel_rate
    firsts = accumulate((1 + len(prompt.follow_ups) for prompt in prompts), initial=0)
    return [
        form.fill(prompt, index, due, cancel_delay if leave else None)
        for index, prompt, due, leave in zip(firsts, prompts, times, leaves, strict=False)  # one more in `firsts`
    ]


INTERVAL = 0.02  # seconds between two looks at the clock
BUSY_CPU = 0.8  # of a core: the event loop has one at most
BUSY_LAG = 0.02  # seconds


def measure_client(cpu: float, lags: Sequence[float]) -> Json:
    """The load of the client in one run, and a warning where the times of the run are not to be trusted.

    cpu    CPU seconds per second of the run
    lags   seconds by which a timer of its event loop fired late
    """
    late = sorted(lags)
    p99, warning = find_percentile(late, 99.0), None
    if cpu >= BUSY_CPU:
        warning = f"the load generator used {cpu:.0%} of a core: it may have been the bottleneck, not the server"
    elif p99 >= BUSY_LAG:
        warning = (
            f"the load generator's event loop was late by up to {p99 * 1000:.0f} ms (99th percentile): "
            "it got too little CPU, and latencies include that"
        )
    return {
        "client_cpu_percent": cpu * 100,
        "client_loop_lag_mean_ms": fmean(late) * 1000,
        "client_loop_lag_p99_ms": p99 * 1000,
        "client_loop_lag_max_ms": late[-1] * 1000,
        "client_warning": warning,
    }


async def _note_lags(lags: list[float]) -> None:
    """Look at the clock again and again, and note by how much each look was late."""
    while True:
        due = time.perf_counter() + INTERVAL
        await asyncio.sleep(INTERVAL)
        lags.append(max(0.0, time.perf_counter() - due))


Send: TypeAlias = Callable[[PreparedRequest, Clock], Awaitable[Outcome]]
"""A request, and the seconds since the start -> its outcome."""


Show: TypeAlias = Callable[..., None]
"""Called as a run goes on, with the number of requests that have ended and, by its name, a `note` on the others."""


@dataclass(frozen=True, slots=True)
class Run:
    """The outcomes of a schedule."""

    outcomes: tuple[Outcome, ...]
    """One for each request that came to an end, in the order of the schedule."""
    planned: int
    duration: float
    """Seconds from the start to the last end."""
    client: Json
    """Figures of the client's own load."""

    @property
    def interrupted(self) -> bool:
        """Whether the run was stopped before every request had its end."""
        return len(self.outcomes) < self.planned


async def play(
    requests: Sequence[PreparedRequest],
    send: Send,
    show: Show,
    max_concurrency: int | None = None,
    think_time: float = 0.0,
) -> Run:
    """Send each request when it is due, which is in their order, and wait until all have ended.

    A conversation's next request is sent `think_time` seconds after the answer that it follows, and a conversation ends
    with an answer that does not come.

    Cancelling it stops the run: what runs is dropped, what ended is returned.
    """
    gate = nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    begin, begin_cpu, lags = time.perf_counter(), time.process_time(), list[float]()
    player = _Player(send, show, gate, lambda: time.perf_counter() - begin, think_time)
    async with background(_note_lags(lags), "note lags"):
        await player.play(requests)
        duration, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    load = measure_client(divide(cpu, duration), lags or [0.0])
    outcomes = sorted(player.outcomes, key=lambda outcome: outcome.request.index)
    followed = sum(one.completed and one.request.follow_up is not None for one in outcomes)
    return Run(tuple(outcomes), len(requests) + followed, duration, load)


@dataclass(slots=True)
class _Player:
    """The requests of one run that are under way, and those that have ended."""

    send: Send
    show: Show
    gate: AbstractAsyncContextManager[None]
    clock: Clock
    think_time: float
    running: int = 0
    lost: int = 0
    """Requests that failed or were rejected or cancelled."""
    outcomes: list[Outcome] = field(default_factory=list)

    async def play(self, requests: Sequence[PreparedRequest]) -> None:
        """Send all requests; returns when they have ended, or soon after a cancellation."""
        try:
            async with asyncio.TaskGroup() as running:
                for request in requests:
                    await self._until(request.due)
                    running.create_task(self._converse(request))
        except asyncio.CancelledError:
            # The user stops the run and wants to see what came of it.
            if (task := asyncio.current_task()) is not None:
                task.uncancel()

    async def _until(self, due: float) -> None:
        """Waits for a time; of many requests that are due at once, lets each go out before the next is made."""
        await asyncio.sleep(0)
        while (wait := due - self.clock()) > 0:
            await asyncio.sleep(wait)

    async def _converse(self, request: PreparedRequest) -> None:
        """Send a request, and those that follow it."""
        while True:
            async with self.gate:
                self._note(1)
                outcome = await self.send(request, self.clock)
            self.outcomes.append(outcome)
            self.lost += not outcome.completed
            self._note(-1)
            if request.follow_up is None or not outcome.completed:
                return
            request = request.follow_up(outcome.text, self.clock() + self.think_time)
            await self._until(request.due)

    def _note(self, change: int) -> None:
        self.running += change
        lost = f", {self.lost} not completed" if self.lost else ""
        self.show(len(self.outcomes), note=f"{self.running} running{lost}")
