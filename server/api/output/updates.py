"""The updates of several requests, read as one stream.

It knows no format. A reader that is slower than the engine finds one update per request, never a queue of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TypeAlias

from engine.messages import RowUpdate
from scheduler.request import Request
from scheduler.stream import join_updates
from server.api.errors import ApiError

Arrivals: TypeAlias = Mapping[int, RowUpdate]
"""Updates since the last look: the place of a request among those asked for -> its update."""

RECORDING_TIME = 5.0
"""Seconds that the end of an answer is held back at most until it is recorded (--journal-sync)."""


class Updates:
    """Iterates until every request has had its last update, which is recorded by then where that is promised.

    Use as an asynchronous context. Raises ApiError 503 when that cannot be kept.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._arrivals: dict[int, RowUpdate] = {}
        self._arrived = asyncio.Event()
        self._pumps: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Updates:
        # A single stream is read directly: a task between would cost a switch per token.
        if len(self._requests) > 1:
            self._pumps = [asyncio.create_task(self._pump(*pair)) for pair in enumerate(self._requests)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def __aiter__(self) -> AsyncIterator[Arrivals]:
        return self._merged() if self._pumps else self._single()

    async def _single(self) -> AsyncIterator[Arrivals]:
        async for update in self._requests[0].stream:
            await _until_recorded(self._requests[0], update)
            yield {0: update}

    async def _merged(self) -> AsyncIterator[Arrivals]:
        unfinished = len(self._requests)
        while unfinished:
            await self._arrived.wait()
            self._arrived.clear()
            arrivals, self._arrivals = self._arrivals, {}
            if not arrivals:
                self._raise_failure()
                continue
            unfinished -= sum(update.finish_reason is not None for update in arrivals.values())
            yield arrivals

    async def _pump(self, place: int, request: Request) -> None:
        try:
            async for update in request.stream:
                await _until_recorded(request, update)
                earlier = self._arrivals.get(place)
                self._arrivals[place] = update if earlier is None else join_updates((earlier, update))
                self._arrived.set()
        finally:
            self._arrived.set()

    def _raise_failure(self) -> None:
        for pump in self._pumps:
            if pump.done():
                pump.result()


async def _until_recorded(request: Request, update: RowUpdate) -> None:
    """Hold the last update of a request back until the journal has it; raises ApiError."""
    if update.finish_reason is None or request.recorded is None:
        return
    with suppress(TimeoutError):
        if await asyncio.wait_for(asyncio.wrap_future(request.recorded), RECORDING_TIME):
            return
    raise ApiError(503, "the answer could not be recorded in the journal; try again later", code="journal_failed")
