"""Repeatable request times, and open-loop runs, whose latencies count from due times ("coordinated omission"; Gil
Tene). Gaps for rate r and burstiness b follow Gamma(shape=b, scale=1/(r*b)): 1 is Poisson, infinity a metronome.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from loadgen.bench.measures import divide, find_percentile
from loadgen.client.request import Clock, LoadPrompt, PreparedRequest, RequestForm, RequestOutcome
from loadgen.options import Arriving
from loadgen.result_file import Json
from scheduler.clock import background, watch_lag


def arrival_times(rate: float, burstiness: float, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Seconds after the start, ascending, scaled to end at count / rate as in `vllm bench serve`; rate (infinity: all
    at once) and burstiness are above 0.
    """
    if math.isinf(rate):
        return np.zeros(count)
    even = math.isinf(burstiness)
    gaps = np.ones(count) if even else rng.standard_gamma(burstiness, count) / burstiness  # of mean 1
    times = np.cumsum(gaps / rate)
    if count and times[-1] > 0:
        times *= count / rate / times[-1]
    return np.asarray(times)


ARRIVALS, CANCELLATIONS = range(2)  # independent random streams, so that cancellations do not move other requests


def schedule(prompts: Sequence[LoadPrompt], form: RequestForm, how: Arriving, seed: int = 0) -> list[PreparedRequest]:
    """In order. Raises UserError."""
    if how.request_rate is None:
        prompts = sorted(prompts, key=lambda prompt: prompt.arrival)
        times = [prompt.arrival for prompt in prompts]
    else:
        rng = np.random.default_rng([seed, ARRIVALS])
        times = arrival_times(how.request_rate, how.burstiness, len(prompts), rng).tolist()
    leaves = np.random.default_rng([seed, CANCELLATIONS]).random(len(prompts)) < how.cancel_rate
    firsts = accumulate((1 + len(prompt.follow_ups) for prompt in prompts), initial=0)
    return [
        form.fill(prompt, index, due, how.cancel_delay if leave else None)
        for index, prompt, due, leave in zip(firsts, prompts, times, leaves, strict=False)  # one more in `firsts`
    ]


INTERVAL = 0.02  # seconds between looks at the clock
BUSY_CPU = 0.8  # of a core
BUSY_LAG = 0.02  # seconds


def measure_client(cpu: float, lags: Sequence[float]) -> Json:
    """With a warning where times are not to be trusted.

    cpu    CPU seconds per second
    lags   seconds by which a timer fired late
    """
    late = sorted(lags)
    p99, warning = find_percentile(late, 99.0), None
    if cpu >= BUSY_CPU:
        warning = f"the load generator used {cpu:.0%} of a core: it may have been the bottleneck, not the server"
    elif p99 >= BUSY_LAG:
        lateness = f"late by up to {p99 * 1000:.0f} ms (99th percentile)"
        warning = f"the load generator's event loop was {lateness} for lack of CPU, and latencies include that"
    return {
        "client_cpu_percent": cpu * 100,
        "client_loop_lag_mean_ms": fmean(late) * 1000,
        "client_loop_lag_p99_ms": p99 * 1000,
        "client_loop_lag_max_ms": late[-1] * 1000,
        "client_warning": warning,
    }


# (request, seconds since the start) -> outcome
Send = Callable[[PreparedRequest, Clock], Awaitable[RequestOutcome]]


Show = Callable[..., None]  # called with the number of ended requests and a `note`


@dataclass(frozen=True, slots=True)
class Run:
    outcomes: tuple[RequestOutcome, ...]  # of requests that ended, in schedule order
    planned: int
    duration: float  # seconds to the last end
    client: Json  # figures of the client's own load

    @property
    def interrupted(self) -> bool:
        return len(self.outcomes) < self.planned


async def play(
    requests: Sequence[PreparedRequest],
    send: Send,
    show: Show,
    max_concurrency: int | None = None,
    think_time: float = 0.0,
) -> Run:
    """Follow-ups go `think_time` seconds after answers; failures end conversations. Cancelled, it returns what
    ended.
    """
    gate = nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    begin, begin_cpu, lags = time.perf_counter(), time.process_time(), list[float]()
    player = _Player(send, show, gate, lambda: time.perf_counter() - begin, think_time)
    async with background(watch_lag(lags.append, INTERVAL), "note lags"):
        await player.play(requests)
        duration, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    load = measure_client(divide(cpu, duration), lags or [0.0])
    outcomes = sorted(player.outcomes, key=lambda outcome: outcome.request.index)
    followed = sum(one.completed and one.request.follow_up is not None for one in outcomes)
    return Run(tuple(outcomes), len(requests) + followed, duration, load)


@dataclass(slots=True)
class _Player:
    send: Send
    show: Show
    gate: AbstractAsyncContextManager[None]
    clock: Clock
    think_time: float
    running: int = 0
    lost: int = 0  # failed, rejected or cancelled
    outcomes: list[RequestOutcome] = field(default_factory=list)

    async def play(self, requests: Sequence[PreparedRequest]) -> None:
        """Returns when all have ended, or soon after a cancellation."""
        try:
            async with asyncio.TaskGroup() as running:
                for request in requests:
                    await self._until(request.due)
                    running.create_task(self._converse(request))
        except asyncio.CancelledError:
            # the user wants to see what ended
            if (task := asyncio.current_task()) is not None:
                task.uncancel()

    async def _until(self, due: float) -> None:
        """Wait; of many requests due at once, each goes out before the next is made."""
        await asyncio.sleep(0)
        while (wait := due - self.clock()) > 0:
            await asyncio.sleep(wait)

    async def _converse(self, request: PreparedRequest) -> None:
        while True:
            async with self.gate:
                self._note(1)
                outcome = await self.send(request, self.clock)
            self.outcomes.append(outcome)
            self.lost += not outcome.completed
            self._note(-1)
            if request.follow_up is None or not outcome.completed:
                return
            pause = self.think_time if request.pause is None else request.pause
            request = request.follow_up(outcome.text, self.clock() + pause)
            await self._until(request.due)

    def _note(self, change: int) -> None:
        self.running += change
        lost = f", {self.lost} not completed" if self.lost else ""
        self.show(len(self.outcomes), note=f"{self.running} running{lost}")
