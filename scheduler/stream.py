"""The way of an answer from the dispatcher to its reader: updates go in, merged updates come out.

A reader that is slower than the engine finds its backlog merged into one update, so a stream never holds more
than one row's answer and the writer never waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from engine.messages import RowUpdate


class TokenStream:
    """One writer, one reader, one event loop. Iterating ends after the update that carries a finish reason."""

    def __init__(self) -> None:
        self._backlog: RowUpdate | None = None
        self._arrived = asyncio.Event()

    def put(self, update: RowUpdate) -> None:
        """Add an update; never blocks."""
        self._backlog = update if self._backlog is None else merge(self._backlog, update)
        self._arrived.set()

    async def __aiter__(self) -> AsyncIterator[RowUpdate]:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            update, self._backlog = self._backlog, None
            if update is None:
                continue
            yield update
            if update.finish_reason is not None:
                return


def merge(first: RowUpdate, second: RowUpdate) -> RowUpdate:
    """Merge two updates of one row, in order."""
    return replace(
        second,
        token_ids=first.token_ids + second.token_ids,
        text=first.text + second.text,
        logprobs=first.logprobs + second.logprobs,
        prompt_logprobs=first.prompt_logprobs if second.prompt_logprobs is None else second.prompt_logprobs,
    )
