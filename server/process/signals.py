"""SIGINT and SIGTERM as events: the first asks the process to end, the second to hurry, the third is the system's."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Listens while it is entered. Event loop's thread only."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._instead: Callable[[], None] | None = None

    def __enter__(self) -> Signals:
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go()

    def on_first(self, action: Callable[[], None] | None) -> None:
        """Do this at the first signal, in place of setting `first`; None takes it back."""
        self._instead = action

    def _receive(self) -> None:
        if self._instead is not None:
            self._instead()
        elif not self.first.is_set():
            self.first.set()
        else:
            self.second.set()
            self._let_go()

    def _let_go(self) -> None:
        """From now on a signal does what it does to any process."""
        for number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
