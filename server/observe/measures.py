"""Measures that the server keeps of itself: a weighted histogram, delays of the event loop, and throughput."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector

from engine.messages import Report, StepReport
from scheduler.clock import background
from scheduler.dispatcher import Dispatcher
from server.observe.logs import with_fields


class WeightedHistogram(Collector):
    """Counts in buckets; the last one takes whatever is above the others."""

    def __init__(self, name: str, text: str, bounds: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._bounds = (*bounds, inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterator[HistogramMetricFamily]:
        bounds = ["+Inf" if bound == inf else str(float(bound)) for bound in self._bounds]
        counts = [float(count) for count in accumulate(self._counts)]
        yield HistogramMetricFamily(self._name, self._text, list(zip(bounds, counts, strict=True)), self._sum)


LAG_INTERVAL = 0.25
"""Seconds between two looks."""


@asynccontextmanager
async def measure_lag(observe: Callable[[float], object]) -> AsyncIterator[None]:
    """Observe by how many seconds each look came too late, until the context is left."""
    async with background(_measure(observe), "loop lag"):
        yield


async def _measure(observe: Callable[[float], object]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_INTERVAL
        await asyncio.sleep(LAG_INTERVAL)
        observe(max(0.0, loop.time() - due))


log = logging.getLogger(__name__)

INTERVAL = 10.0
"""Seconds between two lines, as in vLLM."""


class Throughput:
    """Tokens of the executors' reports since the latest line. Event loop only."""

    def __init__(self) -> None:
        self._read = 0
        self._generated = 0

    def receive(self, report: Report) -> None:
        """Count the tokens of a step."""
        if isinstance(report, StepReport):
            self._read += report.tally.prompt
            self._generated += report.tally.generated

    def tell(self, load: Dispatcher, seconds: float) -> None:
        """Log what the last `seconds` brought, and begin anew; nothing where nothing ran, waited or was computed."""
        read, generated = self._read / seconds, self._generated / seconds
        self._read = self._generated = 0
        running, waiting, usage = load.requests_running, load.requests_waiting, load.kv_usage
        if not (running or waiting or read or generated):
            return
        log.info(
            "%d running, %d waiting; tokens/s: %.1f generated, %.1f of prompts; K/V %.0f %% full",
            running,
            waiting,
            generated,
            read,
            100 * usage,
            extra=with_fields(
                running=running,
                waiting=waiting,
                generated_tokens_per_s=round(generated, 1),
                prompt_tokens_per_s=round(read, 1),
                kv_usage=round(usage, 3),
            ),
        )


@asynccontextmanager
async def log_throughput(throughput: Throughput, load: Dispatcher) -> AsyncIterator[None]:
    """Tell it every INTERVAL until the context is left."""
    async with background(_tell_on(throughput, load), "throughput"):
        yield


async def _tell_on(throughput: Throughput, load: Dispatcher) -> None:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while True:
        await asyncio.sleep(INTERVAL)
        now = loop.time()
        throughput.tell(load, now - begin)
        begin = now
