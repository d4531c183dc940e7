"""The load that the load generator itself has: CPU use of this process and delays of its event loop.

A client that is short of CPU reads tokens late and blames the server, so a result is only worth as much as this.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType

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


class LoadWatch:
    """Watches while it is entered, on the running event loop; `load` tells afterwards."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self._begin = self._end = (0.0, 0.0)

    async def __aenter__(self) -> LoadWatch:
        self._begin = (time.perf_counter(), time.process_time())
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end = (time.perf_counter(), time.process_time())
        if self._task is not None:
            self._task.cancel()

    def load(self) -> ClientLoad:
        """The load between entering and leaving."""
        wall, cpu = (end - begin for begin, end in zip(self._begin, self._end, strict=True))
        lags = np.array(self._lags or [0.0])
        return ClientLoad(
            cpu=cpu / wall if wall > 0 else 0.0,
            mean_lag=float(lags.mean()),
            p99_lag=float(np.percentile(lags, 99)),
            max_lag=float(lags.max()),
        )

    async def _watch(self) -> None:
        while True:
            due = time.perf_counter() + INTERVAL
            await asyncio.sleep(INTERVAL)
            self._lags.append(max(0.0, time.perf_counter() - due))
