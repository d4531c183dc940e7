"""One clock for all streams: it looks at each when its time has come, a few at a time, so that thousands of them whose
times are the same do not hold others up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

from aiohttp import web

log = logging.getLogger(__name__)

BUDGET = 0.002
"""Seconds of looks in a turn of the event loop."""

Look: TypeAlias = Callable[[], Awaitable[float | None]]
"""Looks at a stream, and tells in how many seconds to look again; None: never. It must not wait for the client."""


class Ticker:
    """Looks at streams from time to time, in a task that runs while there are any. Event loop only."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int]] = []
        self._looks: dict[int, Look] = {}
        self._numbers = count()
        self._earlier = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def follow(self, look: Look, first: float) -> Iterator[None]:
        """Look after `first` seconds, and then as often as it says, until the context is left."""
        number = next(self._numbers)
        self._looks[number] = look
        self._push(number, first)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="ticker")
        try:
            yield
        finally:
            self._looks.pop(number, None)
            if not self._looks and self._task is not None:
                self._task.cancel()
                self._task = None
                self._due.clear()

    def _push(self, number: int, seconds: float) -> None:
        heappush(self._due, (asyncio.get_running_loop().time() + seconds, number))
        if self._due[0][1] == number:
            self._earlier.set()

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        begun = clock()
        while True:
            wait = self._due[0][0] - clock() if self._due else None
            if wait is not None and wait <= 0:
                await self._look(heappop(self._due)[1])
                if clock() - begun < BUDGET:
                    continue
                await asyncio.sleep(0)  # all else runs once
            else:
                await self._rest(wait)
            begun = clock()

    async def _rest(self, seconds: float | None) -> None:
        """Wait for the next look, which may come to be an earlier one."""
        self._earlier.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._earlier.wait()

    async def _look(self, number: int) -> None:
        look, seconds = self._looks.get(number), None
        if look is None:
            return  # it was left meanwhile
        try:
            seconds = await look()
        except ConnectionError:
            pass  # its handler is being cancelled already
        except Exception:
            log.exception("a stream could not be looked at")
        if seconds is not None:
            self._push(number, seconds)


TICKER = web.AppKey("ticker", Ticker)
