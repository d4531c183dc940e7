"""How many lines of batches are with the dispatcher at a time. Event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from server.batches.asking import Asker
from server.batches.files import FileStore
from server.http.quota import Share

LINES_PER_SLOT = 2
"""Lines that are asked for at a time: a slot would be empty until the last answer is on the disk and the next line's
prompt has been read, were none waiting."""

RETRY = 1.0
"""Seconds after which what there was no room for is tried again: a line in the queue or in its key's quota, an answer
on the disk."""


class Slots:
    """Twice as many as executors have, so that the next lines are at hand when a slot that no other wants is free."""

    def __init__(self, asker: Asker, files: FileStore, slots: Callable[[], int]) -> None:
        self._asker = asker
        self._files = files
        self._slots = slots
        self._taken = 0
        self._room = asyncio.Event()

    async def take(self, holder: str | None) -> Share:
        """Wait for a slot, and for the quota of a key and its room for answers, without holding the one meanwhile."""
        while True:
            while self._taken >= max(1, LINES_PER_SLOT * self._slots()):  # without slots, one is asked again and again
                self._room.clear()
                await self._room.wait()
            share = self._asker.enter(holder) if self._files.may_answer(holder) else None
            if share is not None:
                self._taken += 1
                return share
            await self.rest()

    async def rest(self) -> None:
        """Wait before what there was no room for is tried again."""
        await asyncio.sleep(RETRY)

    def free(self, share: Share, _: object = None) -> None:
        """Give a slot back, as a callback too."""
        self._asker.leave(share)
        self._taken -= 1
        self._room.set()
