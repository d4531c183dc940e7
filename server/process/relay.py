"""The way of executors' reports from their threads to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

from engine.messages import Report

Listener: TypeAlias = Callable[[Report], None]


class Relay:
    """Brings reports to the listeners that there are at the time; before and after them they are dropped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listeners: tuple[Listener, ...] = ()

    def deliver(self, report: Report) -> None:
        """Pass a report on, from any thread, also after the loop was closed."""
        with suppress(RuntimeError):  # the loop is closed: an executor has outlasted it
            self._loop.call_soon_threadsafe(self._receive, report)

    @contextmanager
    def send_to(self, *listeners: Listener) -> Iterator[None]:
        """Let each listener get each report, in this order, until the context is left."""
        self._listeners = listeners
        try:
            yield
        finally:
            self._listeners = ()

    def _receive(self, report: Report) -> None:
        for listener in self._listeners:
            listener(report)
