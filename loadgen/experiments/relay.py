"""The way of executors' reports to the event loop on which somebody listens for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from engine.messages import Report

Listener = Callable[[Report], None]


class Relay:
    """Brings reports from the executors' threads to whoever listens on the event loop at the time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listener: Listener | None = None

    def deliver(self, report: Report) -> None:
        """May be called from any thread, and after the loop was closed."""
        with suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            self._loop.call_soon_threadsafe(self._hear, report)

    @contextmanager
    def heard_by(self, listener: Listener) -> Iterator[None]:
        """Until the context is left, `listener` gets the reports."""
        self._listener = listener
        try:
            yield
        finally:
            self._listener = None

    def _hear(self, report: Report) -> None:
        if self._listener is not None:
            self._listener(report)
