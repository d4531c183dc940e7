"""Signals and library settings at a process's start, before torch; light imports only."""

import asyncio
import signal
from collections.abc import Callable, MutableMapping

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """SIGINT and SIGTERM: the first asks to end, the second hurries, the third is the system's. Event loop only."""

    def __init__(self, instead: Callable[[], None], on_second: Callable[[], None]) -> None:
        """While not None, `instead` replaces setting `first`; `on_second` runs at the second signal, in the main
        thread.
        """
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.instead: Callable[[], None] | None = instead
        self._on_second = on_second

    def __enter__(self) -> "Signals":
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
            for number in SIGNALS:  # the loop stands still while it joins threads
                signal.signal(number, self._hurry)
        else:
            self.second.set()

    def _hurry(self, number: int, frame: object) -> None:
        """Restore the system's handling, as the loop may be stuck."""
        self._on_second()
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)


# Compiled products kept by torch and by oneDNN, by bfloat16 shape. Of a tiny model under random prompts and batches
# 256 take 0.22 GB, level from the first 1,300 calls on; 64 take 0.06 GB, and 4 to 18 % more CPU a call; 1,024 take
# 0.84 GB after 3,600 calls, and more.
KEPT_PRODUCTS = "256"


def tune_libraries(environ: MutableMapping[str, str]) -> None:
    """Waiting OpenMP threads yield soon: beside a busy process their spinning made decode steps of 70 ms up to 3 s.
    Bounds oneDNN's cache.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", "10000")
    for table in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        environ.setdefault(table, KEPT_PRODUCTS)
