"""The load that the load generator itself has: CPU use of this process and delays of its event loop.

A client that is short of CPU reads tokens late and blames the server, so a result is only worth as much as this.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

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
        wall, late = time.perf_counter() - begin, np.array(lags or [0.0])
        return ClientLoad(
            cpu=(time.process_time() - begin_cpu) / wall if wall > 0 else 0.0,
            mean_lag=float(late.mean()),
            p99_lag=float(np.percentile(late, 99)),
            max_lag=float(late.max()),
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
