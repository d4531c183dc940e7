"""SIGINT and SIGTERM as events: the first asks the process to end, the second to hurry, the third is the system's."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def exit_on(*numbers: int) -> Iterator[None]:
    """Make these signals exceptions, SystemExit with 128 and the number, so that what is under way is cleaned up."""

    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Signals:
    """Listens while it is entered. Event loop's thread only."""

    def __init__(self, on_second: Callable[[], None]) -> None:
        """`on_second` is called at the second signal, between any two instructions of the main thread."""
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._on_second = on_second
        self._instead: Callable[[], None] | None = None

    def __enter__(self) -> Signals:
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def on_first(self, action: Callable[[], None] | None) -> None:
        """Do this at the first signal, in place of setting `first`; None takes it back."""
        self._instead = action

    def _receive(self) -> None:
        if self._instead is not None:
            self._instead()
        elif not self.first.is_set():
            self.first.set()
            for number in SIGNALS:  # the loop stands still while it joins threads on the way out
                signal.signal(number, self._hurry)
        else:
            self.second.set()

    def _hurry(self, number: int, frame: object) -> None:
        """The second signal has come, and the loop may not see it; from now on one does what it does to any process."""
        self._on_second()
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
