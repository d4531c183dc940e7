"""A clock that stands still until it is moved, so that hours pass as fast as they can be computed."""

from __future__ import annotations

import asyncio


class VirtualClock:
    """A scheduler's clock; it starts at 0."""

    def __init__(self) -> None:
        self._time = 0.0

    def now(self) -> float:
        return self._time

    def move_to(self, time: float) -> None:
        """Let it be this time; a moment that has passed changes nothing."""
        self._time = max(self._time, time)

    async def wait(self, event: asyncio.Event, until: float | None) -> None:
        """Nothing happens while one waits, so the time that is waited for is there at once."""
        if until is None:
            await event.wait()
        elif not event.is_set():
            self.move_to(until)
