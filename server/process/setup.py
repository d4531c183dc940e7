"""What a process sets for itself at its start: how signals reach it, and, before torch is imported, how libraries
compute in it. So it imports nothing heavy.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager

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
    """SIGINT and SIGTERM as events: the first asks the process to end, the second to hurry, the third is the system's.
    Listens while it is entered. Event loop's thread only."""

    def __init__(self, instead: Callable[[], None], on_second: Callable[[], None]) -> None:
        """`instead` is called in place of setting `first`, until it is None; `on_second` is called at the second
        signal, between any two instructions of the main thread."""
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.instead: Callable[[], None] | None = instead
        self._on_second = on_second

    def __enter__(self) -> Signals:
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _receive(self) -> None:
        if self.instead is not None:
            self.instead()
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


KEPT_PRODUCTS = "256"
"""Compiled products that torch and oneDNN keep, each in a table of its own, in place of 1,024.

In bfloat16 each size of a batch and its columns is one, of half a MiB: a tiny model had 829 MiB after 700 requests, and
721 like this, for 4 % more CPU time.
"""


def tune_libraries(environ: MutableMapping[str, str]) -> None:
    """Let OpenMP's threads give the core away soon when they wait for each other, and bound what oneDNN compiles.

    By default they spin for milliseconds, which is a disaster where anything else wants a core: with one other busy
    process on 2 cores, a decode step of 70 ms took up to 3 s, and 0.2 s like this. Undisturbed, both are as fast.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", "10000")
    for table in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        environ.setdefault(table, KEPT_PRODUCTS)
